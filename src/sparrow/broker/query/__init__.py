"""Queries for stored messages."""
