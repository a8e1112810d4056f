"""The wizard: from the headers of CSV files to a run file, a check, a run and a report."""
