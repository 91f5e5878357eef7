"""Consuming by pull: long polling, filters, retries, and messages that are resent."""
