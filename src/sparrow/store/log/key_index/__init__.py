"""The key index: its files, and the backlog of keys that are not in them yet."""
