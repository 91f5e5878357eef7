"""Replica sets: followers copy the log of a leader, and another replica leads when the leader fails."""
