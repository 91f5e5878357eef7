"""Relay: sends committed events to the broker."""
