"""Gradients by formulas and by a compiled kernel, of networks that consist of a few kinds of layers."""
