"""Bulk sends: tables and lists of messages as large batches, several requests at a time."""
