"""Producer, consumer and admin. The rules are pure modules here; two shells, asyncio and blocking, put them to work.

What stands here is the blocking flavour; `sparrow.client.aio` has the same names for asyncio.
"""

from sparrow.client.aio.consume.queue_fetcher import Appetite
from sparrow.client.blocking import Admin, Consumer, PopConsumer, Producer
from sparrow.client.retry import Bury, Later
from sparrow.model.message import Message
from sparrow.model.priority import Priority
from sparrow.model.send_result import Outcome, SendResult, SendStatus
from sparrow.model.token import Credentials

__all__ = [
    "Admin",
    "Appetite",
    "Bury",
    "Consumer",
    "Credentials",
    "Later",
    "Message",
    "Outcome",
    "PopConsumer",
    "Priority",
    "Producer",
    "SendResult",
    "SendStatus",
]
