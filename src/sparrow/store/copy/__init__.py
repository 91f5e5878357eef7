"""Copies between stores: the plan, the copier, and references that become messages."""
