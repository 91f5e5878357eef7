"""Limits on what peers may take of a server: memory, descriptors, and what was refused."""
