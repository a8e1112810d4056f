"""What may leave a run folder, and MLflow, which it is logged to."""
