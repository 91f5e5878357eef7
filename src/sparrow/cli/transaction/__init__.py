"""`sparrow transaction`."""
