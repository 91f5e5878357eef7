"""readonly."""
