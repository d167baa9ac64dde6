"""Data sets, how they are made or read, and which client has which samples. Settings import without torch."""
