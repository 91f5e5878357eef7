"""Consuming: group membership, rebalancing, prefetching, delivery to handlers, offsets, retries, and pop."""
