"""Names that the field and other tools use, and what is typed here instead."""

from __future__ import annotations

# name in other tools, without capitals, dashes and underscores -> the setting or group here, or a whole override
OTHER_NAMES = {
    **dict.fromkeys(("learningrate", "locallr", "clientlr", "stepsize"), "client.lr"),
    **dict.fromkeys(("serverlr", "globallr", "serverlearningrate"), "algorithm.eta"),
    **dict.fromkeys(("bs", "localbs", "batch", "localbatchsize", "trainbatchsize"), "client.batch_size"),
    **dict.fromkeys(("epoch", "epochs", "localep", "numepochs"), "client.local_epochs"),
    **dict.fromkeys(("steps", "localiterations", "localiters"), "client.local_steps"),
    **dict.fromkeys(("wd", "decay"), "client.weight_decay"),
    **dict.fromkeys(("round", "rounds", "numrounds", "commround", "globalrounds"), "budget.server_iterations"),
    **dict.fromkeys(("iterations", "iters", "maxiterations", "globalepochs"), "budget.server_iterations"),
    **dict.fromkeys(("clients", "numclients", "users", "numusers"), "n_clients"),
    **dict.fromkeys(("clientsperround", "participants", "maxconcurrency"), "concurrency"),
    **dict.fromkeys(("buffer", "aggregationgoal"), "algorithm.buffer_size"),
    **dict.fromkeys(("alpha", "dirichlet", "dirichletalpha"), "heterogeneity.alpha"),
    **dict.fromkeys(("partition", "partitioner", "split"), "heterogeneity"),
    **dict.fromkeys(("method", "strategy", "aggregator", "rule", "algo"), "algorithm"),
    **dict.fromkeys(("net", "network", "arch"), "model"),
    **dict.fromkeys(("data", "task"), "dataset"),
    **dict.fromkeys(("evalevery", "evalinterval", "evalfreq"), "evaluation.every"),
    **dict.fromkeys(("output", "out", "outdir", "logdir", "savedir"), "output_dir"),
    **dict.fromkeys(("numthreads", "numworkers"), "threads"),
    **dict.fromkeys(("gpu", "cuda"), "device=cuda"),
    **dict.fromkeys(("overwrite", "force"), "rerun=true"),
    "cpu": "device=cpu",
    "iid": "heterogeneity=iid",
    "quiet": "progress=false",
}
# options of other tools, written as above -> what is typed here
OTHER_OPTIONS = {
    **dict.fromkeys(
        ("dryrun", "dry", "n", "simulate", "estimate"), "--plan, which shows what would run and runs nothing"
    ),
    **dict.fromkeys(("list", "usage", "options"), "--help, which lists all groups and settings"),
    **dict.fromkeys(("config", "configpath", "configname", "configfile", "cfgfile"), "--config-dir DIR"),
    **dict.fromkeys(("continue", "restore", "checkpoint"), "--resume DIR"),
    "cfg": "--cfg job",
    **dict.fromkeys(("sweep", "grid"), "sweep=NAME, or -m with several values"),
    "v": "--version",
}
# group -> name of a choice in the field, written as above -> the words that are typed here
OTHER_CHOICES = {
    "algorithm": {
        **dict.fromkeys(("fedadam", "adam"), "algorithm=fedopt algorithm.optimizer=adam"),
        **dict.fromkeys(("fedyogi", "yogi"), "algorithm=fedopt algorithm.optimizer=yogi"),
        **dict.fromkeys(("fedadagrad", "adagrad"), "algorithm=fedopt algorithm.optimizer=adagrad"),
        **dict.fromkeys(("sgd", "asyncsgd", "vanillaasgd", "asynchronoussgd"), "algorithm=asgd"),
        **dict.fromkeys(("fedsgd", "localsgd", "sync", "synchronous"), "algorithm=fedavg"),
        **dict.fromkeys(("async", "asyncfl", "asynchronous"), "algorithm=fedasync"),
        **dict.fromkeys(("buffered", "fedbuffer"), "algorithm=fedbuff"),
        **dict.fromkeys(("sfl", "splitfedv1", "splitlearning"), "algorithm=splitfed"),
        "maleniasgd": "algorithm=malenia",
        "nesterov": "algorithm=delayed_nesterov",
        "stalenessaware": "algorithm=delay_adaptive_asgd",
        "fedasmu": "algorithm=fedasmu_server",
        "fedstale": "algorithm=fedstale_async",
    },
    "heterogeneity": {
        **dict.fromkeys(("noniid", "dir", "lda", "labelskew"), "heterogeneity=dirichlet"),
        **dict.fromkeys(("pathological", "pat"), "heterogeneity=shards"),
        **dict.fromkeys(("classes", "nclasses"), "heterogeneity=class_shards"),
        **dict.fromkeys(("uniform", "homogeneous", "random", "balanced"), "heterogeneity=iid"),
        **dict.fromkeys(("real", "writer", "bywriter", "byuser"), "heterogeneity=natural"),
    },
    "dataset": {
        **dict.fromkeys(("cifar", "c10"), "dataset=cifar10"),
        **dict.fromkeys(("fmnist", "fashion"), "dataset=fashion_mnist"),
        **dict.fromkeys(("20news", "20newsgroups", "newsgroups"), "dataset=newsgroups20"),
        **dict.fromkeys(("npz", "own", "custom"), "dataset=arrays dataset.path=FILE.npz"),
        "cinic": "dataset=cinic10",
        "leaf": "dataset=femnist",
        "sst": "dataset=sst2",
    },
    "model": {
        **dict.fromkeys(("lr", "logistic", "logisticregression", "linear"), "model=softmax"),
        **dict.fromkeys(("fc", "dnn", "perceptron", "2nn"), "model=mlp"),
        **dict.fromkeys(("distilbert", "minilm"), "model=bert model.path=FOLDER"),
        "resnet": "model=resnet18",
        "lenet": "model=lenet5",
        "convnet": "model=cnn",
        "rnn": "model=lstm",
        "vgg": "model=vgg16",
        "vit": "model=vit_small",
    },
    "client": {"adam": "client=adamw", "momentum": "client.momentum=0.9", "prox": "client.proximal=0.1"},
    "delay": {
        **dict.fromkeys(("straggler", "stragglers"), "delay=mixed_exponential"),
        **dict.fromkeys(("zero", "off"), "delay=none"),
        **dict.fromkeys(("fixed", "equal"), "delay=constant"),
        **dict.fromkeys(("fedscale", "flash", "mobile"), "delay=phones"),
        **dict.fromkeys(("file", "measured"), "delay=trace delay.path=FILE.csv"),
        "exp": "delay=exponential",
        "heavytail": "delay=pareto",
    },
    "availability": {
        **dict.fromkeys(("all", "full"), "availability=always"),
        **dict.fromkeys(("drop", "churn"), "availability=dropout"),
        **dict.fromkeys(("bernoulli", "suspend"), "availability=suspension"),
        **dict.fromkeys(("file", "measured"), "availability=trace availability.path=FILE.csv"),
    },
    "schedule": {"random": "schedule=random_idle", "same": "schedule=same_client", "queue": "schedule=uniform_queue"},
    "unlabelled": {"server": "unlabelled=held_back", "public": "unlabelled=images", "random": "unlabelled=noise"},
    "live": {"real": "live=processes", "local": "live=processes", "grpc": "live=flower", "replay": "live=recorded"},
    "profile": {"paper": "profile=published", "official": "profile=released"},
    "scale": {**dict.fromkeys(("test", "debug"), "scale=smoke"), "paper": "scale=full", "large": "scale=full"},
    "tracking": {
        **dict.fromkeys(("none", "off", "disabled"), "tracking=local"),
        **dict.fromkeys(("tb", "board"), "tracking=tensorboard"),
        "weightsandbiases": "tracking=wandb",
    },
}
# group -> names of the field, written as above, that have no choice here
NOT_HERE = {
    "algorithm": (
        *("apfl", "asofed", "diloco", "ditto", "favas", "fedat", "fedavgm", "fedbn", "fedcm", "fedcompass", "feddf"),
        *(
            "fedexp",
            "fedgen",
            "fedgkt",
            "fedkd",
            "fedmd",
            "fednova",
            "fedper",
            "fedproto",
            "fedrep",
            "fedsam",
            "heloco",
        ),
        *(
            "krum",
            "masfl",
            "median",
            "mime",
            "moon",
            "oort",
            "perfedavg",
            "pfedme",
            "qffl",
            "quafl",
            "safa",
            "scaffold",
        ),
        *("slowmo", "tifl", "timelyfl", "trimmedmean"),
    ),
    "dataset": ("agnews", "celeba", "emnist", "imagenet", "reddit", "stackoverflow", "stl10", "svhn", "tinyimagenet"),
    "model": ("efficientnet", "gpt2", "gru", "mobilenet", "resnet20", "resnet34", "resnet50", "shufflenet", "vgg11"),
    "tracking": ("aim", "clearml", "comet", "mlflow", "neptune"),
}


def without_marks(name: str) -> str:
    """Return a name as other tools may write it: ``batchSize`` and ``batch-size`` for ``batch_size``."""
    return name.lower().replace("_", "").replace("-", "")


def describe_other_choice(group: str, choice: str, known: str) -> str:
    """Return what to type for a name that a group does not have. known: the message that lists its choices."""
    name = without_marks(choice)
    words = OTHER_CHOICES.get(group, {}).get(name, "")
    if words and f"'{words.removeprefix(f'{group}=')}'" not in known:  # else the message suggests that choice
        return f"is another name; write {words}"
    return f"is not here. It {known[known.index('must') :]}" if name in NOT_HERE.get(group, ()) else known
