"""Delayed messages: delay levels, delivery times and recalls, on a log store and on a database."""
