"""The routes of the REST API, one module a noun."""
