"""`sparrow group`."""
