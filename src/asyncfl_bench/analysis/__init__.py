"""Numbers from frames of runs: which run belongs where, measures, statistics, and what a paper claims."""
