"""Producing: sends, batches, replies, deduplication, priority lanes, and two-phase writes by stages."""
