"""Pop: the broker hands messages out for a time, takes them back when it is over, and forgets those acknowledged."""
