"""Recovery: checkpoints, replay of the log at a start, and truncation."""
