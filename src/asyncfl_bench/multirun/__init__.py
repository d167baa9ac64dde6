"""Multiruns: which jobs they have, which are pending, and how these are launched."""
