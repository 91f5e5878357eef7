"""The log store: a commit log in RocketMQ's format, and views that can be rebuilt from it."""

from sparrow.store.log.engine import LogStore

__all__ = ["LogStore"]
