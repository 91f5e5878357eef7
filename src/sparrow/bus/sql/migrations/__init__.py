"""Numbered, forward-only migrations of the bus tables; the table `schema_version` records which ones were applied."""
