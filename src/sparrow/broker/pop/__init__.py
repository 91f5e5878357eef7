"""Consuming by pop: a message is invisible while in flight, and is redelivered unless it is acknowledged in time."""
