"""Receiver: stores events that arrive from the broker."""
