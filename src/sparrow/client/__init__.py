"""Producer, consumer and admin. The rules are pure modules here; two shells, asyncio and blocking, put them to work.

What stands here is the blocking flavour; `sparrow.client.aio` has the same names for asyncio.
"""

from sparrow.client.aio.consume.queue_fetcher import Prefetch
from sparrow.client.blocking import Admin, Consumer, PopConsumer, Producer
from sparrow.client.retry import DeadLetter, RetryLater
from sparrow.model.message import Message
from sparrow.model.priority import Priority
from sparrow.model.send_result import SendResult, SendStatus, TransactionState
from sparrow.model.token import Credentials

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
