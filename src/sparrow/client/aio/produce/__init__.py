"""produce."""
