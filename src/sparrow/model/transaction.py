"""The state of a transaction, as its producer reports it to the broker."""

from __future__ import annotations

from enum import Enum


class TransactionState(Enum):
    """The result of the work that a half message waits for (RocketMQ's `LocalTransactionState`)."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOW"
    """Not decided yet: the broker checks back later. (RocketMQ's spelling; it appears in traces.)"""
