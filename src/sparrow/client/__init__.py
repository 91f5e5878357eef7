"""The client: producers, consumers and admin, blocking here and for asyncio in `sparrow.client.aio`.

`from sparrow import Producer` and `from sparrow import aio` are the public names; this package keeps the import paths
of version 0.1, and the old names of what has been renamed, until version 0.3.
"""

from __future__ import annotations

import warnings

from sparrow.client.blocking import Admin, Consumer, PopConsumer, Producer
from sparrow.client.consume.retry import DeadLetter, RetryLater
from sparrow.client.options import Prefetch
from sparrow.model.access.token import Credentials
from sparrow.model.message import Message
from sparrow.model.priority import Priority
from sparrow.model.send_result import SendResult, SendStatus
from sparrow.model.transaction import TransactionState

__all__ = [
    "Admin",
    "Consumer",
    "Credentials",
    "DeadLetter",
    "Message",
    "PopConsumer",
    "Prefetch",
    "Priority",
    "Producer",
    "RetryLater",
    "SendResult",
    "SendStatus",
    "TransactionState",
]

_RENAMED = {"Appetite": Prefetch, "Bury": DeadLetter, "Later": RetryLater, "Outcome": TransactionState}


def __getattr__(name: str) -> object:
    """Return a class under the name that it had in version 0.1, with a warning."""
    found = _RENAMED.get(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"sparrow.client.{name} is now sparrow.{found.__name__}; the old name leaves in version 0.3",
        DeprecationWarning,
        stacklevel=2,
    )
    return found
