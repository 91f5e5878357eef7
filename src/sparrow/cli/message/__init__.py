"""`sparrow message`."""
