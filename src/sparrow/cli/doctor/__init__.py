"""`sparrow doctor`."""
