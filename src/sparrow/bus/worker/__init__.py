"""Background tasks of a running bus: relay, receivers, maintenance, supervision and wake-up signals."""
