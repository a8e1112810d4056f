"""A node's ledger: its rules, its file and its summary."""
