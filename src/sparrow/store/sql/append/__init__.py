"""Appending: lane writers, inserts inside other transactions, atomic appends and deduplication."""
