"""Batches of a lingering producer: collecting messages, and sending them."""
