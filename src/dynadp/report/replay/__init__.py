"""A run looked at again, round by round, and what a neighbour sees of it."""
