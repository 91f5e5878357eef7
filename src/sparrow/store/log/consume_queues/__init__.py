"""Consume queues: one queue, the table of all queues, and the builder that fills them from the log."""
