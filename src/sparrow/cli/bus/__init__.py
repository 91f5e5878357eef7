"""`sparrow bus`: run an event bus, and inspect and change its messages."""
