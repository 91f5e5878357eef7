"""`sparrow tail`."""
