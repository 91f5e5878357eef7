"""`sparrow dlq`: dead letters."""
