"""Privacy as data: what was spent (events), what may be spent (schedules)."""
