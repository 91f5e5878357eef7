"""What the REST API accepts and returns, one module a noun."""
