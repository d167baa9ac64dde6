"""Names that the field and other tools use, and what is typed here instead."""

from __future__ import annotations

from collections.abc import Mapping

# All names are written without capitals, dashes and underscores.

# the setting or group here, or a whole override -> names in other tools
_NAMES = {
    "client.lr": "learningrate locallr clientlr stepsize",
    "algorithm.eta": "serverlr globallr serverlearningrate",
    "client.batch_size": "bs localbs batch localbatchsize trainbatchsize",
    "client.local_epochs": "epoch epochs localep numepochs",
    "client.local_steps": "steps localiterations localiters",
    "client.weight_decay": "wd decay",
    "budget.server_iterations": (
        "round rounds numrounds commround globalrounds iterations iters maxiterations globalepochs"
    ),
    "n_clients": "clients numclients users numusers",
    "concurrency": "clientsperround participants maxconcurrency",
    "algorithm.buffer_size": "buffer aggregationgoal",
    "heterogeneity.alpha": "alpha dirichlet dirichletalpha",
    "heterogeneity": "partition partitioner split",
    "algorithm": "method strategy aggregator rule algo",
    "model": "net network arch",
    "dataset": "data task",
    "evaluation.every": "evalevery evalinterval evalfreq",
    "output_dir": "output out outdir logdir savedir",
    "threads": "numthreads numworkers",
    "device=cuda": "gpu cuda",
    "rerun=true": "overwrite force",
    "device=cpu": "cpu",
    "heterogeneity=iid": "iid",
    "progress=false": "quiet",
}
# what is typed here -> options of other tools
_OPTIONS = {
    "--plan, which shows what would run and runs nothing": "dryrun dry n simulate estimate",
    "--help, which lists all groups and settings": "list usage options",
    "--config-dir DIR": "config configpath configname configfile cfgfile",
    "--resume DIR": "continue restore checkpoint",
    "--cfg job": "cfg",
    "sweep=NAME, or -m with several values": "sweep grid",
    "--version": "v",
}
# the words that are typed here, the group first -> names of such a choice in the field
_CHOICES = {
    "algorithm=fedopt algorithm.optimizer=adam": "fedadam adam",
    "algorithm=fedopt algorithm.optimizer=yogi": "fedyogi yogi",
    "algorithm=fedopt algorithm.optimizer=adagrad": "fedadagrad adagrad",
    "algorithm=asgd": "sgd asyncsgd vanillaasgd asynchronoussgd",
    "algorithm=fedavg": "fedsgd localsgd sync synchronous",
    "algorithm=fedasync": "async asyncfl asynchronous",
    "algorithm=fedbuff": "buffered fedbuffer",
    "algorithm=splitfed": "sfl splitfedv1 splitlearning",
    "algorithm=malenia": "maleniasgd",
    "algorithm=delayed_nesterov": "nesterov",
    "algorithm=delay_adaptive_asgd": "stalenessaware",
    "algorithm=fedasmu_server": "fedasmu",
    "algorithm=fedstale_async": "fedstale",
    "heterogeneity=dirichlet": "noniid dir lda labelskew",
    "heterogeneity=shards": "pathological pat",
    "heterogeneity=class_shards": "classes nclasses",
    "heterogeneity=iid": "uniform homogeneous random balanced",
    "heterogeneity=natural": "real writer bywriter byuser",
    "dataset=cifar10": "cifar c10",
    "dataset=fashion_mnist": "fmnist fashion",
    "dataset=newsgroups20": "20news 20newsgroups newsgroups",
    "dataset=arrays dataset.path=FILE.npz": "npz own custom",
    "dataset=cinic10": "cinic",
    "dataset=femnist": "leaf",
    "dataset=sst2": "sst",
    "model=softmax": "lr logistic logisticregression linear",
    "model=mlp": "fc dnn perceptron 2nn",
    "model=bert model.path=FOLDER": "distilbert minilm",
    "model=resnet18": "resnet",
    "model=lenet5": "lenet",
    "model=cnn": "convnet",
    "model=lstm": "rnn",
    "model=vgg16": "vgg",
    "model=vit_small": "vit",
    "client=adamw": "adam",
    "client.momentum=0.9": "momentum",
    "client.proximal=0.1": "prox",
    "delay=mixed_exponential": "straggler stragglers",
    "delay=none": "zero off",
    "delay=constant": "fixed equal",
    "delay=phones": "fedscale flash mobile",
    "delay=trace delay.path=FILE.csv": "file measured",
    "delay=exponential": "exp",
    "delay=pareto": "heavytail",
    "availability=always": "all full",
    "availability=dropout": "drop churn",
    "availability=suspension": "bernoulli suspend",
    "availability=trace availability.path=FILE.csv": "file measured",
    "schedule=random_idle": "random",
    "schedule=same_client": "same",
    "schedule=uniform_queue": "queue",
    "unlabelled=held_back": "server",
    "unlabelled=images": "public",
    "unlabelled=noise": "random",
    "live=processes": "real local",
    "live=flower": "grpc",
    "live=recorded": "replay",
    "profile=published": "paper",
    "profile=released": "official",
    "scale=smoke": "test debug",
    "scale=full": "paper large",
    "tracking=local": "none off disabled",
    "tracking=tensorboard": "tb board",
    "tracking=wandb": "weightsandbiases",
}
# group -> names of the field that have no choice here
NOT_HERE = {
    "algorithm": (
        "apfl asofed diloco ditto favas fedat fedavgm fedbn fedcm fedcompass feddf fedexp fedgen fedgkt fedkd "
        "fedmd fednova fedper fedproto fedrep fedsam heloco krum masfl median mime moon oort perfedavg pfedme "
        "qffl quafl safa scaffold slowmo tifl timelyfl trimmedmean"
    ),
    "dataset": "agnews celeba emnist imagenet reddit stackoverflow stl10 svhn tinyimagenet",
    "model": "efficientnet gpt2 gru mobilenet resnet20 resnet34 resnet50 shufflenet vgg11",
    "tracking": "aim clearml comet mlflow neptune",
}


def _by_name(table: Mapping[str, str]) -> dict[str, str]:
    """Return what is typed here by other name."""
    return {name: typed for typed, names in table.items() for name in names.split()}


OTHER_NAMES, OTHER_OPTIONS = _by_name(_NAMES), _by_name(_OPTIONS)
OTHER_CHOICES = {  # by group and other name: names of several groups may be equal
    (words.partition("=")[0].partition(".")[0], name): words
    for words, names in _CHOICES.items()
    for name in names.split()
}


def without_marks(name: str) -> str:
    """Return a name as other tools may write it: ``batchSize`` and ``batch-size`` for ``batch_size``."""
    return name.lower().replace("_", "").replace("-", "")


def describe_other_choice(group: str, choice: str, known: str) -> str:
    """Return what to type for a name that a group does not have. known: the message that lists its choices."""
    name = without_marks(choice)
    words = OTHER_CHOICES.get((group, name), "")
    if words and f"'{words.removeprefix(f'{group}=')}'" not in known:  # else the message suggests that choice
        return f"is another name; write {words}"
    return f"is not here. It {known[known.index('must') :]}" if name in NOT_HERE.get(group, "").split() else known
