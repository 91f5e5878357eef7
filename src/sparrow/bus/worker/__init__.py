"""Background tasks of a running bus: supervision, maintenance and wake-up signals."""
