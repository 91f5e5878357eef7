"""Retention: when old messages may be deleted."""
