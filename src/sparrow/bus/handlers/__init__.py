"""Subscriptions and handlers: declaration, lookup, calling, and the transaction a handler runs in."""
