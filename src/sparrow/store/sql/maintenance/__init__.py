"""Maintenance of a database: retention and the consistency check."""
