"""Differentially private machine learning over a network: consensus ADMM among nodes that keep their rows."""

from importlib.metadata import version

__version__ = version("dynadp")
