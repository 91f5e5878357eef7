"""Handlers of admin requests (mqadmin and similar tools)."""
