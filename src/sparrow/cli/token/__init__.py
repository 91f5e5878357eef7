"""`sparrow token`."""
