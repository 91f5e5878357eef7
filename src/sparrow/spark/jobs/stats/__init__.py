"""Statistics job: measure messages, traces and consumer lag by minute."""
