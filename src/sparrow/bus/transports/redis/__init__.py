"""Redis Streams transport."""
