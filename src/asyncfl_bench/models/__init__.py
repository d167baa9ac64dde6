"""Models, and the task of a model on the samples of clients. Settings of models import without torch."""
