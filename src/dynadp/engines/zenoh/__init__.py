"""Zenoh."""
