"""`sparrow bench`."""
