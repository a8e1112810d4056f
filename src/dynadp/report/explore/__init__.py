"""The local page: measure, compare, decide."""
