"""Audit job: compare sent, stored and handled messages."""
