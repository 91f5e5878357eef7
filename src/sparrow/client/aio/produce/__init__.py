"""Producing: sends, batches, transactions, requests and replies, tables, and staged writes."""
