"""Consensus."""
