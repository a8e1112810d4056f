"""Data to try things on, and ways to split rows over nodes."""
