"""Read-only access to a store directory that another process may have open."""
