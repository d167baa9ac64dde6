"""Clients on nodes of a Flower deployment. Only ``server_app`` and ``client_app`` import flwr."""
