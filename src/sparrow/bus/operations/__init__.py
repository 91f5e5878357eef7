"""Operator actions on stored events: search, statistics, requeue, cancel, delete, park."""
