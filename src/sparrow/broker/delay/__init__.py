"""delay."""
