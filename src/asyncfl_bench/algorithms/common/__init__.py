"""Code of several server rules: caches, rounds, split learning, clusters, running sums and trials."""
