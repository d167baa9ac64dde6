"""A task: a data set, its partition over the clients, a model, its loss and its metrics.

``datasets``, ``synthetic``, ``partition`` and ``models`` hold what a config names and import without torch;
``networks``, ``flat`` and ``task`` compute, and import it.
"""
