"""A node's ledger: its rules, its file, what it says."""
