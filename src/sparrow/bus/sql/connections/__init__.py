"""Connections to the database of the bus: engines, the choice of a host, and transactions."""
