"""`sparrow send`."""
