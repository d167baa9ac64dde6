"""What several server rules share: caches, rounds, split learning, clusters, running sums, and trials by hand."""
