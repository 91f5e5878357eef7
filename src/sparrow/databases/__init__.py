"""What the SQL store and the event bus share about databases: URLs, TLS, accounts, and which host is writable."""
