"""What may be said of a run outside, and MLflow, which is told."""
