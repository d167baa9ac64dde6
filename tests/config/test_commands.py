"""What a command answers before anything is computed: right and wrong words of every kind, as a table.

Each row is a command and what comes of it: for a refusal (exit 2) a part of the one line it prints, for a run some of
its settings, for a multirun how many runs are planned.
"""

import re
import shlex
from types import SimpleNamespace

import hydra
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from tiers import slow

from asyncfl_bench import experiment
from asyncfl_bench.cli import command
from asyncfl_bench.config import PARTS, choices, compose, overrides
from asyncfl_bench.config.other_names import NOT_HERE, OTHER_CHOICES, without_marks
from asyncfl_bench.errors import format_value
from asyncfl_bench.multirun import pending

GRADIENTS = "has no effect on uploads that are gradients: the step is the server's, algorithm.eta or algorithm.c"
ONE_STEP = "has no effect in a single local step; client.local_steps or client.local_epochs has more"
TRANSMISSION = "delay=work_and_link delay.bandwidth=1e6"
HINGE = "algorithm=fedasync algorithm.staleness_weight=hinge"

REFUSED = {
    "unknown choices": [
        (
            "algorithm=aec",
            "algorithm=aec: did you mean 'ace'. It must be one of ace, .* more .afl-run --help algorithm lists them",
        ),
        ("algorithm=ACE", "algorithm=ACE: did you mean 'ace'. It must be one of ace"),
        ("algorithm=null", "algorithm=null: must be one of ace"),
        ("algorithm=", "algorithm=: must be one of ace"),
        ("algorithm=[ace]", r"algorithm=\[ace\]: did you mean 'ace'. It must be one of ace"),
        ("algorithm={a:1}", "algorithm={a:1}: must be one of ace"),
        ("client=null", "client=null: must be one of adamw, sgd"),
        ("client=adam", "client=adam: did you mean 'adamw'. It must be one of adamw, sgd"),
        ("dataset=imagenet", "dataset=imagenet: is not here. It must be one of arrays, cifar10"),
        ("dataset=cifar", "did you mean 'cifar10'"),
        ("dataset=CIFAR10", "did you mean 'cifar10'"),
        ("model=resnet1", "did you mean 'resnet18'"),
        ("delay=exp_beta3", "did you mean 'exp_beta30'|did you mean 'exp_beta5'"),
        ("availability=drop", "did you mean 'dropout'"),
        ("schedule=random", "did you mean 'random_idle'"),
        ("diagnostics=noise", "must be one of dissimilarity, mse, none, server_time, similarity"),
        ("tracking=tensorbord", "tracking=tensorbord: did you mean 'tensorboard'. It must"),
        ("heterogeneity=dirichlett", "did you mean 'dirichlet'"),
        ("paper=ACE", "paper=ACE: did you mean 'ace'. It must be one of ace, afbs/cifar10"),
        ("paper=asyncfeded", "did you mean 'asyncfeded/femnist'"),
        ("paper=ace/fair", "must be one of ace"),
        ("profile=fairly", "must be one of fair, published, released, tuned"),
        ("scale=tiny", "must be one of full, medium, small, smoke"),
        ("length=longer", "must be one of long, standard"),
        ("sweep=figure2", "sweep=figure2: did you mean '.*figure2'. It must be one of ace/dropout_bias, ace/figure2"),
        ("sweep=ace/figure9", "did you mean 'ace/figure"),
        ("hydra/launcher=slurmm", "hydra/launcher=slurmm: "),
    ],
    "misspelt keys": [
        ("sed=3", "sed=3: no such setting .*did you mean 'seed'"),
        ("delay.bta=3", "no such setting of delay .*did you mean 'beta'"),
        ("client.lrr=1", "did you mean 'lr'"),
        ("budget.wall_time=5", "no such setting of budget .*did you mean 'virtual_time'"),
        ("evaluation.evry=5", "did you mean 'every'"),
        ("a.b.x=3", "a.b.x=3: no such setting; known: "),
        ("=ace", "=ace: no such setting"),
        ("algorithm.eta.x=3", "no such setting of algorithm.eta"),
        ("model.layers=3", "no such setting of model, except with model=lstm"),
        ("algorithm.buffer_size=5", "except with algorithm=afbs|ca2fl|fedbuff"),
        ("availability.share=0.5", "except with availability=dropout"),
        ("dataset.path=x.npz", "except with dataset=arrays"),
        ("delay.bandwidth=9", "except with delay=work_and_link"),
        ("+algorithm.lrr=1", "algorithm.lrr=1: is not a setting"),
        ("++delay.bta=3", "delay.bta=3: is not a setting"),
        ("+new=3", "new=3: is not a setting"),
        ("+seed=3", "seed=3: .*already at 'seed'"),
    ],
    "names of other tools": [
        ("lr=0.1", "^afl-run: lr=0.1: lr is algorithm.eta; write algorithm.eta=0.1$"),
        ("lr=0.1 algorithm=fedbuff", "^afl-run: lr=0.1: lr is client.lr; write client.lr=0.1$"),
        ("+lr=0.1", "^afl-run: lr=0.1: lr is algorithm.eta; write algorithm.eta=0.1$"),
        ("-m lr=0.1,1", "^afl-run: lr=0.1: lr is algorithm.eta; write algorithm.eta=0.1$"),
        ("batch_size=32", "batch_size is client.batch_size; write client.batch_size=32$"),
        ("batchSize=32", "batchSize is client.batch_size; write client.batch_size=32$"),
        ("epochs=5", "epochs is client.local_epochs; write client.local_epochs=5$"),
        ("rounds=5", "rounds is budget.server_iterations; write budget.server_iterations=5$"),
        ("budget.rounds=5", "rounds is budget.server_iterations; write budget.server_iterations=5$"),
        ("num_clients=5", "num_clients is n_clients; write n_clients=5$"),
        ("algorithm=fedbuff buffer_size=5", "buffer_size is algorithm.buffer_size; write algorithm.buffer_size=5$"),
        ("buffer_size=5", "with algorithm=afbs.*; write algorithm=NAME algorithm.buffer_size=5$"),
        ("dirichlet_alpha=1", "dirichlet_alpha is heterogeneity.alpha; write heterogeneity.alpha=1$"),
        ("client.learning_rate=1", "learning_rate is algorithm.eta; write algorithm.eta=1$"),
        ("place=disk", "place is algorithm.cache.place; write"),
        ("precision=int8", "precision=int8: must be one of fp32, tf32"),
        ("every=5", "every is evaluation.every or checkpoint.every; write evaluation.every=5$"),
        ("method=ace", "method is algorithm; write algorithm=ace$"),
        ("gpu=0", "gpu is device=cuda; write device=cuda$"),
    ],
    "options of other tools": [
        ("--seed=1", "^afl-run: --seed=1: a setting has no dashes; write seed=1$"),
        ("--seed 1", "^afl-run: --seed: a setting has no dashes; write seed=1$"),
        ("--plan --seed 1", "a setting has no dashes; write seed=1$"),
        ("--live-apps x", "did you mean '--live-app'"),
        ("budget.uploads=100 budget=5", "budget=5: must be a section of settings"),
        ("budget=5 length=long", "budget=5: must be a section of settings"),
        ("dataset.min_samples=5", "no such setting of dataset, except with dataset=femnist"),
        (
            "algorithm=fedbuff unlabelled.samples=9",
            "has no effect with algorithm=fedbuff, whose server uses no samples",
        ),
        ("algorithm=ace --cfg job --seed=1", "a setting has no dashes; write seed=1$"),
        ("--algorithm ace", "a setting has no dashes; write algorithm=ace$"),
        ("--num-clients=9", "a setting has no dashes; num_clients is n_clients; write n_clients=9$"),
        ("--lr 0.1 algorithm=ace", "a setting has no dashes; lr is algorithm.eta; write algorithm.eta=0.1$"),
        ("--seed", "write seed=VALUE$"),
        ("--dry-run", "^afl-run: --dry-run: no such option; write --plan, which shows what would run"),
        ("--plann", "no such option .did you mean '--plan'"),
    ],
    "wrong types": [
        ("seed=abc", "seed=abc: must be a whole number >= 0"),
        ("seed=1.5", "must be a whole number >= 0"),
        ("seed=1e3", "seed=1000.0: must be a whole number >= 0"),
        ("seed=true", "must be a whole number >= 0"),
        ("seed=null", "must be a whole number >= 0"),
        ("seed=", "seed=: must be a whole number >= 0"),
        ("seed=[1,2]", "must be a whole number >= 0"),
        ("'seed={a: 1}'", "must be a whole number >= 0"),
        ("n_clients=many", "must be a whole number >= 1"),
        ("threads=auto", "must be a whole number >= 1, or null"),
        ("trace=maybe", "must be true or false"),
        ("device=null", "must be text"),
        ("output_dir=null", "must be text"),
        ("algorithm=fedbuff client.lr=[0.1]", "client.lr=.*: must be a number > 0"),
        ("algorithm=fedbuff client.lr=0.1.2", "must be a number > 0"),
        ("client.batch_size=1.5", "must be a whole number >= 1, or all"),
        ("client.batch_size=true", "must be a whole number >= 1, or all"),
        ("client.batch_size=null", "must be a whole number >= 1, or all"),
        ("budget.server_iterations=many", "must be a whole number > 0, or null for no limit"),
        ("budget=5", "budget=5: must be a section of settings"),
        ("evaluation=null", "must be a section of settings"),
        ("algorithm.cache=int8", "must be a section of settings"),
        ("dataset=arrays dataset.path=[a]", "must be text or null"),
        ("algorithm._target_=3", "must (name a class|be a class)"),
        ("algorithm._target_=nowhere.X", "must (name a class|be a class)"),
        ("algorithm._target_=os.path.join", "must (name a class|be a class)"),
    ],
    "lists": [
        ("model.hidden=200", "must be a list of whole numbers, for example"),
        ("model.hidden=null", "must be a list of whole numbers"),
        ("model.hidden=[]", "must be a list of integers >= 1"),
        ("model.hidden=[0]", "must be a list of integers >= 1"),
        ("model.hidden=[200.5]", r"model.hidden=\[200.5\]: must be a list of whole numbers"),
        ("model.hidden=[200,nan]", "must be finite"),
        ("tracking=wandb tracking.wandb.tags=a", "must be a list of words"),
        ("delay=fadas_mild delay.shares=[]", "must be a list of numbers > 0"),
        ("delay=fadas_mild delay.ranges=[]", "must be 6 numbers >= 0: low, high of every class"),
        ("delay=fadas_mild delay.ranges=[2,1,1,2,1,2]", "must be pairs with low <= high"),
        ("delay=fadas_mild delay.ranges=[0,nan,1,2,3,4]", "delay.ranges=.*nan.*: must be finite"),
        ("delay=fadas_mild delay.shares=[1,inf,2]", "delay.shares=.*inf.*: must be finite"),
        ("delay=work_and_link delay.client_factors=[1,nan] n_clients=2", "client_factors=.*nan.*: must be finite"),
        ("delay=work_and_link delay.client_factors=[1,a] n_clients=2", "must be a list of numbers"),
        ("delay=work_and_link delay.client_factors=[1,0] n_clients=2", "must be a list of numbers > 0"),
        ("delay=work_and_link delay.client_factors=[1,2] n_clients=3", "one for each of the 3 clients"),
        ("delay=work_and_link delay.client_factors=3", "must be a list of numbers"),
    ],
    "out of range": [
        ("seed=-1", "must be a whole number >= 0"),
        ("n_clients=0", "must be a whole number >= 1"),
        ("concurrency=0", "must be a whole number >= 1, or null for all clients"),
        ("concurrency=101", r"must be at most the number of clients \(n_clients=100\)"),
        ("threads=0", "must be a whole number >= 1, or null"),
        ("client.batch_size=0", "must be a whole number >= 1, or all"),
        ("algorithm=fedbuff client.lr=-1", "must be a number > 0"),
        ("algorithm=fedbuff client.lr=0", "must be a number > 0"),
        ("algorithm=fedbuff client.local_steps=0", "must be a whole number >= 1"),
        ("client.momentum=1", r"must be a number in \[0, 1\)"),
        ("heterogeneity.alpha=0", "must be a number > 0"),
        ("heterogeneity.min_samples=-1", "must be a whole number >= 0"),
        ("delay.beta=-5", "must be a number >= 0"),
        ("availability=dropout availability.share=1.1", r"must be a number in \[0, 1\]"),
        ("budget.server_iterations=0", "must be a whole number > 0, or null for no limit"),
        ("budget.uploads=-5", "must be a whole number > 0, or null for no limit"),
        ("budget.uploads=2.5", "must be a whole number > 0, or null for no limit"),
        ("evaluation.every=0", "must be a whole number >= 1"),
        ("evaluation.validation_share=1", r"must be a number in \[0, 1\)"),
        ("checkpoint.every_minutes=0", "must be a number > 0, or null"),
        ("clock=tick", "did you mean 'ticks'. It must be one of auto, time, ticks"),
        ("executor=batch", "did you mean 'batched'"),
        ("device=gpu", "must be auto, cpu, cuda or cuda:N"),
        ("device=cuda:x", "must be auto, cpu, cuda or cuda:N"),
        ("device=", "must be auto, cpu, cuda or cuda:N"),
        ("algorithm.cache.precision=int4", "must be one of fp32, bf16, int8"),
        ("tracking=wandb tracking.wandb.mode=on", "must be one of online, offline, disabled"),
    ],
    "not finite": [
        ("algorithm=fedbuff client.lr=nan", "client.lr=nan: must be finite"),
        ("algorithm=fedbuff client.lr=inf", "client.lr=inf: must be finite"),
        ("algorithm=fedbuff client.lr=1e300", "must be finite, at most 3.40282e\\+38 in single precision"),
        ("algorithm.eta=1e300", "algorithm.eta=1e\\+300: must be finite"),
        ("budget.virtual_time=inf", "must be finite"),
        ("evaluation.every_time=nan", "must be finite"),
    ],
    "names of the field": [
        ("algorithm=fedadam", "algorithm=fedadam: is another name; write algorithm=fedopt algorithm.optimizer=adam$"),
        ("heterogeneity=non_iid", "heterogeneity=non_iid: is another name; write heterogeneity=dirichlet$"),
        ("-m algorithm=ace,SCAFFOLD", "algorithm=SCAFFOLD: is not here"),
        ("model=logistic_regression", "write model=softmax$"),
        ("tracking=mlflow", "is not here"),
    ],
    "not written key=value": [
        ("ace", "ace=: must be written key=value, for example algorithm=ace"),
        ("algorithm:ace", "must be written key=value"),
        ("algorithm ace", "must be written key=value"),
        ("'algorithm = ace'", "must be written key=value; quote text"),
        ("algorithm==ace", "must be written key=value; quote text"),
        ("algorithm=ace=fedbuff", "must be written key=value; quote text"),
        ("'algorithm=ace;'", "must be written key=value; quote text"),
        ("algorithm=[ace", "must be written key=value; quote text"),
        ("'algorithm=ace fedbuff'", "must be one of ace"),
        ("--fast", "--fast: no such option .did you mean '--"),
        ("~seed", "~seed=: cannot be taken out"),
        ("~algorithm", "~algorithm=: cannot be taken out"),
        ("'seed=${nope}'", "Interpolation key 'nope' not found"),
    ],
    "lists of values": [
        ("seed=1,2", "seed=1,2: is a list of values: afl-run -m runs them all"),
        ("algorithm=ace,fedbuff", "is a list of values: afl-run -m runs them all"),
        ("'seed=range(3)'", "is a list of values"),
        ("output_dir=a,b", "is a list of values"),
        ("'client.lr=interval(0.01,0.1)'", "client.lr=.*: is a range"),
        ("-m algorithm=fedbuff 'client.lr=interval(0.01,0.1)'", "client.lr=.*: is a range: say how many"),
        ("-m 'algorithm=glob(zz*)'", r"algorithm=glob.zz\*.: must match a choice: ace, aced, afbs, "),
        ("-m 'seed=glob(1*)'", "seed=.*: must list its values"),
        ("-m algorithm=ace,aec", "algorithm=aec: did you mean 'ace'. It must be one of ace"),
        ("-m seed=0,-1", "seed=-1: must be a whole number >= 0"),
        ("-m seed=0,1 ~delay", "cannot be taken out of a sweep"),
        ("-m seed=0,1 profile=published,fair", "must be one choice: each has its own folder"),
        ("-m seed=0,1 hydra/launcher=slurmm", "hydra/launcher=slurmm: did you mean 'slurm'. It must be one of cores"),
        (
            "-m seed=0,1 hydra/launcher=cores,basic",
            "hydra/launcher=cores,basic: did you mean 'cores'. It must be one of cores",
        ),
        ("-m seed=0,1 hydra/launcher=", "hydra/launcher=: must be one of cores"),
        ("-m seed=0,1 hydra/launcher=null", "hydra/launcher=null: must be one of cores"),
        ("-m seed=0,1 hydra.launcher=null", "hydra.launcher=null: is chosen by name: hydra/launcher=NAME"),
        (
            "-m seed=0,1 hydra/sweeper=pending_run",
            "hydra/sweeper=pending_run: .*did you mean 'pending_runs'",
        ),
        ("-m seed=0,1 hydra/sweeper=optuna", "hydra/sweeper=optuna: must be one of basic.*hydra-optuna-sweeper"),
        ("-m seed=0,1 hydra/job_logging=null", "hydra/job_logging=null: "),
        ("-m seed=0,1 hydra.job_logging.version=3", "is chosen by name: hydra/job_logging=NAME"),
        ("-m seed=0,1 hydra.mode=RUN", "hydra.mode=RUN: does not go with a multirun"),
        ("-m seed=0,1 hydra.verbose=3", "hydra.verbose=3: must be true, false, or names of loggers"),
        ("-m seed=0,1 'hydra.sweeper.max_batch_size=${n_clients}'", "refers to what differs between runs; write the"),
        (
            "-m algorithm=ace,asgd algorithm.buffer_size=5,10",
            "buffer_size=5: no such setting of algorithm, except",
        ),
        ("--cfg job -m seed=0,1", "does not go with --cfg"),
        ("--cfg jobs", "--cfg=jobs: did you mean 'job'. It must be one of job, hydra, all"),
        ("--info nothing algorithm=ace", "--info=nothing: must be one of all, config, defaults, "),
        ("--cfg job -p", "-p=: must name a part of the config: afl-run --cfg job -p delay"),
        ("--resolve", "--resolve: goes with --cfg job"),
        ("-sc", "-sc=: must be one of install=bash, "),
        ("-sc query=bash", "-sc=query=bash: is for the shell; afl-run -sc install=bash prints what it needs"),
    ],
    "ranges": [
        *(
            (f"-m trials=4 'algorithm.c={text}'", said)
            for text, said in {
                "tag(lgo,interval(0.001,10))": r"algorithm\.c=tag\(lgo,.*: must have no tag but log, .*mean 'log'",
                "tag(log,lgo,interval(1,10))": "must have no tag but log, found lgo",
                "tag(log,choice(1,2))": "must have no tag but draw, found log",
                "tag(drw,range(0,3))": "must have no tag but draw, found drw .did you mean 'draw'",
                "interval(0,1e400)": "must have finite ends a < b",
                "interval(-1e308,1e308)": "must have finite ends a < b",
                "range(0,1,0)": "must be range.start,stop,step. of 1 to 10000 values",
                "range(0,1e9)": "of 1 to 10000 values",
                "range(0,inf)": "of 1 to 10000 values",
                "range(0,1,nan)": "of 1 to 10000 values",
                "range(3,1)": "of 1 to 10000 values",
                "shuffle(range(0,1e9))": "of 1 to 10000 values",
                "[range(0,3)]": "must be written key=value",
            }.items()
        ),
        ("'seed=range(0,1e9)'", "of 1 to 10000 values"),
        pytest.param(f"seed={'9' * 5000}", "must be written key=value", id="a seed of 5000 digits"),
        (
            "-m trials=99999999999999999999 'algorithm.c=interval(1,2)'",
            "trials=99999999999999999999: must be a whole number from 1 to 10000",
        ),
        pytest.param(
            f"-m trials=4 shard=1/{'9' * 5000} 'algorithm.c=interval(1,2)'",
            "must be k/N with 1 <= k <= N",
            id="a shard of 5000 digits",
        ),
        ("-m 'seed=range(0,9999)' 'n_clients=range(1,9999)'", "this multirun has 99970002 runs: at most 10000"),
    ],
    "resuming": [
        ("--resume", "must name a run directory: afl-run --resume DIR"),
        ("--resume nowhere", "resume=nowhere: must be a run directory"),
        ("resume=nowhere", "resume=nowhere: must be a run directory"),
        ("resume=", "must be a run directory"),
        ("-m --resume nowhere", "^afl-run: resume=nowhere: is for a single run"),
        ("--resume nowhere --plan", "is for a single run without --plan"),
    ],
    "places": [
        ("data_dir=nowhere", "data_dir=nowhere: must be an existing directory"),
        ("dataset=arrays", "dataset.path=null: must be an existing .npz file"),
        ("dataset=arrays dataset.path=nowhere.npz", "dataset.path=nowhere.npz: must be an existing .npz file"),
        ("delay=trace", "delay.path=null: must be an existing .csv or .parquet file"),
        ("availability=trace availability.path=x.txt", "must be an existing .csv or .parquet file"),
        ("output_dir=", "output_dir=: must be a directory"),
        ("hydra.run.dir=", "hydra.run.dir=: must be a directory"),
        ("hydra.job.chdir=true", "hydra.job.chdir=true: would give relative paths another meaning in each run"),
        ("-m seed=0,1 hydra.job.chdir=true", "hydra.job.chdir=true: would give relative paths"),
    ],
    "what does not go together": [
        ("budget.server_iterations=null", "must be a number, or another limit of budget must be"),
        ("paper=asyncfeded/synthetic budget.virtual_time=null", "must be a number, or another limit of budget must be"),
        ("delay=none budget.virtual_time=9", "must be joined by another budget: under delay=none virtual time"),
        ("length=long budget.virtual_time=9", "length=long: must be standard with budget.virtual_time"),
        ("length=long profile=fair", "length=long: must be standard with profile=fair"),
        ("profile=fair algorithm=fedasync", "profile=fair: must be published with algorithm=fedasync"),
        ("profile=fair paper=asyncfeded/shakespeare", "profile=fair: must be published for"),
        ("algorithm=ace budget.uploads=900 availability=dropout", "availability.at_iteration=null: half the budget"),
        ("evaluation.every_time=1 evaluation.every_uploads=5", "every_uploads=5: must be null when"),
        ("algorithm.step_on=tick clock=time", "algorithm.step_on=tick: must be arrival or auto"),
        ("client.local_steps=3", "client.local_steps=3: must be 1 for uploads that are gradients"),
        ("client.local_epochs=3", "client.local_epochs=3: must be null for uploads that are gradients"),
        ("algorithm=fedavg client.local_epochs=2 client.local_steps=5", "must be 1 with local_epochs=2"),
        ("algorithm=fedavg client=adamw client.lr_decay=0.9", "must be 1 with optimizer=adamw"),
        ("algorithm=fedavg client.upload=gradient", "client.upload=gradient: must be one of difference"),
        ("algorithm=fedavg schedule.dispatch=immediate", "must be auto or per_round for fedavg"),
        ("algorithm=fedprox client.proximal=0.1", "set algorithm.mu, which decides it"),
        ("algorithm=asyncfeded client.local_steps=9 algorithm.k_max=5", "must be at least the first K, which is 9"),
        ("algorithm.cache.precision=int8 algorithm.rule=incremental", "must be fp32 with rule=incremental"),
        ("diagnostics=mse algorithm=feddyn", "diagnostics"),
        (
            "algorithm=fedbuff algorithm.buffer_size=101 schedule.dispatch=after_update",
            "buffer_size=101: must be at most 100, the clients in flight",
        ),
        (
            "algorithm=fedbuff algorithm.buffer_size=15000 budget.uploads=9000",
            "buffer_size=15000: must be less: the budget ends before it is full once",
        ),
        (
            "algorithm=fedbuff algorithm.buffer_size=15 client.local_steps=5 budget.client_steps=70",
            "buffer_size=15: must be less: the budget ends",
        ),
        (
            "algorithm=gas algorithm.model_buffer=1000 budget.uploads=100 budget.server_iterations=null",
            "model_buffer=1000: must be less: the budget ends before it is full once",
        ),
        ("algorithm=gas algorithm.adjust=2", "algorithm.adjust=2: must be true or false"),
        (
            "algorithm=gas client.logit_adjustment=1",
            "client.logit_adjustment=1.0: must be 0 with algorithm=gas, whose server computes the loss",
        ),
        ("client.logit_adjustment=-1", "client.logit_adjustment=-1.0: must be a number >= 0"),
        ("algorithm=gas algorithm.weight_exponent=1000", "weight_exponent=1000.0: must be a number in ."),
    ],
    "without effect": [
        ("client.lr=0.1", f"client.lr=0.1: {GRADIENTS}; client.upload=difference has local steps"),
        ("algorithm=aced client.lr_decay=0.9", GRADIENTS),
        ("client=adamw", f"client=adamw: {GRADIENTS}"),
        ("client.optimizer=adamw", GRADIENTS),
        ("client.momentum=0.9", GRADIENTS),
        ("client.proximal=1", GRADIENTS),
        ("client=adamw client.weight_decay=1", GRADIENTS),
        ("algorithm=asgd paper=ace client.lr=3", GRADIENTS),
        ("algorithm=fedbuff client.momentum=0.9", ONE_STEP),
        ("algorithm=fedbuff client.proximal=0.9", ONE_STEP),
        ("algorithm=fedprox algorithm.mu=1", f"algorithm.mu=1: {ONE_STEP}"),
        ("algorithm=fedasync algorithm.rho=1", f"algorithm.rho=1: {ONE_STEP}"),
        ("algorithm=fedbuff client=adamw client.momentum=0.5", "with client.optimizer=adamw, which has its own"),
        ("algorithm.eta=0.1 algorithm.c=2", "algorithm.c=2: has no effect with algorithm.eta=0.1; algorithm.eta=null"),
        ("algorithm.eta=0.1 algorithm.total_steps=9", "total_steps=9: has no effect with algorithm.eta=0.1"),
        ("algorithm=fedbuff algorithm.c=2", "algorithm.c=2: has no effect with algorithm.eta=1; algorithm.eta=null"),
        (
            "algorithm=fedbuff algorithm.staleness_exponent=2",
            "staleness_weight=constant; polynomial or freshest has it",
        ),
        ("algorithm=fedasync algorithm.hinge_a=2", "staleness_weight=constant; hinge has it"),
        ("algorithm=fedasync algorithm.hinge_b=2", "staleness_weight=constant; hinge has it"),
        ("algorithm=fedasync algorithm.lag=time", "staleness_weight=constant; hinge or polynomial has it"),
        (f"{HINGE} algorithm.exponent=2", "staleness_weight=hinge; polynomial has it"),
        (
            "algorithm=fedopt algorithm.optimizer=adagrad algorithm.beta2=0.9",
            "optimizer=adagrad; adam and yogi have it",
        ),
        ("algorithm=delay_adaptive_asgd algorithm.smoothness=2", "variant=mishchenko; koloskova has it"),
        ("algorithm=asyncfeded algorithm.kappa=0 algorithm.gamma_bar=2", "algorithm.kappa=0, which keeps K"),
        ("algorithm=asyncfeded algorithm.kappa=0 algorithm.k_max=2", "algorithm.kappa=0, which keeps K"),
        ("algorithm=asyncfeded algorithm.k_initial=4 client.local_steps=2", "with algorithm.k_initial=4"),
        ("delay.beta=0 delay.redraw=true", "delay.redraw=true: has no effect with delay.beta=0"),
        ("delay=mixed_exponential delay.slow_share=0 delay.slow_mean=9", "slow_share=0: no client has it"),
        ("delay=work_and_link delay.link_spread=0.5", "with delay.bandwidth=null: transmission takes no time"),
        ("paper=asyncfeded/synthetic delay.clients_sigma=1", "with delay.client_factors"),
        ("availability=suspension availability.probability=0 availability.hang=2", "where nothing is lost"),
        ("availability=dropout availability.share=0 availability.at_iteration=2", "where no client stops"),
        ("heterogeneity.min_samples=0 heterogeneity.tries=2", "with heterogeneity.min_samples=0"),
        ("dataset=synthetic dataset.alpha=0.5", "has no effect on any sample"),
        ("model=resnet18 model.statistics_rate=0.5", "with model.norm=group; batch has it"),
        ("model=resnet18 model.norm=batch model.groups=2", "with model.norm=batch; group has it"),
        ("length=long evaluation.every=5", "with evaluation.every_uploads=250"),
        ("paper=asyncfeded/synthetic evaluation.every=5", "with evaluation.every_time=2"),
        ("hydra/launcher=cores", "has no effect on a single run; goes with -m"),
        ("-m client.lr=0.001,0.1,10", f"client.lr=0.001: {GRADIENTS}"),
        ("-m algorithm=ace,fedbuff client.momentum=0.9 client.lr=2", "client.momentum=0.9: has no effect"),
        ("-m profile=fair algorithm=ace algorithm.eta=0.1", "algorithm.c=10,5: has no effect .*these would be one run"),
    ],
}

RUNS = [
    ("", "algorithm.c=0.2 clock=ticks seed=0 budget.server_iterations=500"),
    ("algorithm=fedbuff", "algorithm.eta=1.0 client.upload=difference"),
    ("algorithm='ace'", "algorithm.step_on=tick"),
    ("seed=3", "seed=3"),
    ("++seed=3", "seed=3"),
    ("sweep=null", "seed=0"),
    ("seed=7 seed=3", "seed=3"),
    ("trace=yes progress=off rerun=1", "trace=true progress=false rerun=true"),
    ("algorithm=fedbuff 'client.lr=\"0.1\"'", "client.lr=0.1"),
    ("algorithm=fedbuff client.lr=1e-3", "client.lr=0.001"),
    ("algorithm=fedbuff client=adamw client.lr=3", "client.lr=3.0 client.optimizer=adamw"),
    ("algorithm=fedbuff client.momentum=0.9 client.local_steps=2", "client.momentum=0.9"),
    ("algorithm=fedbuff algorithm.eta=null algorithm.c=2", "algorithm.eta=0.894427190999915"),
    ("algorithm=fedprox algorithm.mu=0.3 client.local_epochs=2", "client.proximal=0.3"),
    ("client.upload=difference client.lr=0.5 client.local_steps=3", "client.lr=0.5"),
    ("paper=ace client.momentum=0", "client.momentum=0.0"),
    (f"{HINGE} algorithm.hinge_a=2", "algorithm.hinge_a=2.0"),
    (f"{TRANSMISSION} delay.link_spread=0.5", "delay.link_spread=0.5"),
    ("algorithm=fedbuff algorithm.buffer_size=15000", "algorithm.buffer_size=15000"),
    ("client.batch_size=all", "client.batch_size=all"),
    ("model.hidden=[20,10]", "model.hidden=[20, 10]"),
    ("budget.uploads=5000 algorithm=asgd", "budget.uploads=5000 budget.server_iterations=null"),
    ("budget.uploads=5000 budget.virtual_time=9", "budget.uploads=5000 budget.virtual_time=9.0"),
    ("scale=smoke", "n_clients=10 budget.server_iterations=20"),
    ("device=cuda:1", "device=cuda:1"),
    ("concurrency=10 algorithm=delay_adaptive_asgd", "algorithm.tau_c=10"),
    ("'output_dir=${oc.env:HOME}/x'", "seed=0"),
]

MULTIRUNS = [
    ("-m", 1),
    ("-m seed=0,1,2", 3),
    ("-m 'seed=range(3)' 'algorithm=choice(ace,asgd)'", 6),
    ("-m algorithm=ace,ace", 1),
    ("-m seed=0,1 hydra/launcher=basic", 2),
    ("-m algorithm=asgd,fedbuff client.lr=0.1,1", 3),  # asgd once: the local step is none of its settings
    ("-m algorithm=fedbuff,ace algorithm.buffer_size=5,10", 3),  # ace once: it has no buffer
    ("-m 'algorithm=glob(ace*)'", 2),
    ("-m budget.uploads=50,100", 2),
    ("-m profile=fair algorithm=ace", 7),
    *slow(("sweep=quickstart/six_algorithms", 18)),
    ("sweep=ace/figure2 scale=medium profile=fair seed=0", 60),  # 5 algorithms with 6 steps of its own, in two cells
]


@pytest.fixture
def answer(monkeypatch, afl_run):
    """The command, with what would be run or launched noted instead."""
    noted = SimpleNamespace(settings=None, planned=[])

    def run(settings, group=None, **more):
        noted.settings = settings
        return SimpleNamespace(exit_code=0)

    def launch(arguments):
        noted.planned = list(pending.state.planned)
        return 0

    monkeypatch.setattr(experiment, "execute", run)
    monkeypatch.setattr(command, "closing_line", lambda *result: "")
    monkeypatch.setattr("asyncfl_bench.multirun.run.run_hydra", launch)

    def call(command):
        return afl_run(*shlex.split(command)), noted

    return call


@pytest.mark.parametrize(("command", "said"), [row for rows in REFUSED.values() for row in rows])
def test_a_wrong_command_is_answered_in_one_line(command, said, answer, tmp_path):
    result, noted = answer(command)
    assert result.returncode == 2 and noted.settings is None and not noted.planned, result.stderr
    assert re.match(r"afl-run: \S", result.stderr) and result.stderr.count("\n") == 1
    assert re.search(said, result.stderr), result.stderr
    assert not list(tmp_path.iterdir()), "nothing is left on disk"


@pytest.mark.parametrize(("command", "given"), RUNS)
def test_a_right_command_gives_the_run_these_settings(command, given, answer):
    result, noted = answer(command)
    assert result.returncode == 0, result.stderr
    for text in re.findall(r"\S+=(?:\[.*?\]|\S+)", given):
        key, _, value = text.partition("=")
        node = noted.settings.tree
        for part in key.split("."):
            node = node[part]
        assert format_value(node).startswith(value) if "." in value else format_value(node) == value, key


@pytest.mark.parametrize(("command", "planned"), MULTIRUNS)
def test_a_multirun_is_planned(command, planned, answer):
    result, noted = answer(command)
    assert result.returncode == 0 and len(noted.planned) == planned, result.stderr
    assert {job.error for job in noted.planned} == {None}


def test_other_names_are_no_choices_and_stand_for_choices():
    for group, names in OTHER_CHOICES.items():
        known = choices.options(group)
        for name, words in names.items():
            key, _, value = words.partition(" ")[0].partition("=")
            assert name not in map(without_marks, known) and (value in known if key == group else "." in key), name
    assert not [name for group, names in NOT_HERE.items() for name in names if name in OTHER_CHOICES[group]]


@pytest.mark.parametrize("command", ["sweep=nothing", "paper=nothing", "qqq=1", "delay=qqq", "+client.qqq=1"])
def test_a_message_lists_at_most_ten_choices(command, answer):
    said = answer(command)[0].stderr
    listed = re.search(r"(?:must be one of|known:) (.*?)(?: and \d+ more|$)", said, re.M)
    assert listed and 1 < len(listed[1].split(", ")) <= 10, said


def test_what_is_without_effect_is_said_by_the_part_it_belongs_to():
    from asyncfl_bench.config import compose

    idle = compose(["algorithm=ace", "model=resnet18"]).idle
    assert {"client.lr", "client.momentum", "model.statistics_rate"} <= set(idle)
    assert {key.partition(".")[0] for key in idle} <= {*PARTS, "evaluation", "server_seconds_per_sample"}


@pytest.mark.parametrize(
    ("words", "runs", "compositions"),
    [
        ("algorithm=ace delay=exp_beta5", 10, 1),
        *slow(("algorithm=ace,asgd", 40, 1 + 4), ("", 100, 1 + 10)),
    ],
)
def test_a_plan_composes_once_for_each_choice_of_groups_and_parses_each_word_once(
    words, runs, compositions, monkeypatch, capsys, tmp_path
):
    monkeypatch.chdir(tmp_path)
    composed, parsed = [], []
    compose, parse = hydra.compose, OverridesParser.parse_override
    monkeypatch.setattr(hydra, "compose", lambda *args, **named: composed.append(named) or compose(*args, **named))
    monkeypatch.setattr(OverridesParser, "parse_override", lambda self, text: parsed.append(text) or parse(self, text))
    choices._compose_cached.cache_clear()
    overrides.parse_override.cache_clear()
    assert (
        command._main(
            shlex.split(f"sweep=ace/figure2 scale=medium seed=range(0,5) dataset.download=true {words} --plan")
        )
        == 0
    )
    assert capsys.readouterr().out.startswith(f"{runs} runs, ")
    assert len(composed) == compositions  # of the sweep itself, and of each algorithm and delay
    assert len(parsed) == len({*parsed})


def test_runs_in_several_folders_share_a_composition():
    choices._compose_cached.cache_clear()
    assert [compose([f"output_dir={name}"]).root.output_dir for name in ("one", "two")] == ["one", "two"]
    assert choices._compose_cached.cache_info().misses == 1
    placed = compose(["output_dir=three", "hydra.run.dir=${output_dir}/here"])
    assert str(placed.directory) == "three/here"


def test_a_flag_of_hydras_without_a_value_shows_the_first_one(afl_run):
    assert "eta: " in (shown := afl_run("--cfg", "algorithm=asgd").stdout)
    assert shown == afl_run("--cfg", "job", "algorithm=asgd").stdout
    assert (found := afl_run("--info")).returncode == 0 and "Config search path" in found.stdout
