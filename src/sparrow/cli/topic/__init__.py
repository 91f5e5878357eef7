"""`sparrow topic`."""
