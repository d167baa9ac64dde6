"""Server rules, a module each, and the code that they share."""

# rules of this package, by the names of their yamls, as pages list them; all others follow by name
SHOWN_ORDER = (
    *("ace", "aced", "ca2fl", "fedbuff", "mifa", "area", "fedstale_async", "afbs", "port", "fedecho", "fadas", "fedac"),
    *("gas", "minibatch_sfl", "s2fl", "splitfed"),
    *("delay_adaptive_asgd", "asgd", "ringmaster", "rennala", "malenia", "ringleader", "rescaled_asgd", "clipped_asgd"),
    *("delayed_nesterov", "fedavg", "fedprox", "fedasync", "fedasmu_server", "asyncfeded", "fedfa", "fedopt", "feddyn"),
)
