"""What the handlers of one broker share. Each part is small and has its own module; this only names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparrow import clock
from sparrow.broker.counters import Counters
from sparrow.broker.delay import Delay
from sparrow.broker.groups import Groups
from sparrow.broker.hold import Hold
from sparrow.broker.locks import QueueLocks
from sparrow.broker.members import Members
from sparrow.broker.pop.pops import Pops
from sparrow.broker.topics import Topics
from sparrow.broker.transactions import Transactions
from sparrow.net.address import Address
from sparrow.settings import BrokerSettings
from sparrow.store.log import LogStore


@dataclass(kw_only=True)
class Broker:
    """One broker, without its sockets."""

    settings: BrokerSettings
    address: Address
    """What clients connect to; message ids hold it."""
    store: LogStore
    topics: Topics
    groups: Groups
    members: Members
    locks: QueueLocks
    hold: Hold
    counters: Counters
    delay: Delay
    transactions: Transactions
    pops: Pops
    started_ms: int
    now_ms: Callable[[], int] = clock.now_ms

    @property
    def name(self) -> str:
        return self.settings.name
