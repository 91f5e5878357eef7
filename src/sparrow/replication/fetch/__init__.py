"""Fetches between replicas: the client of a follower, the server of a leader, and the codec of both."""
