"""A run with real clients on real seconds: the same engine, with another timeline and another queue of work."""
