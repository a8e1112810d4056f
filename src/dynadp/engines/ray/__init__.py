"""Nodes as actors of one trusted Ray cluster."""
