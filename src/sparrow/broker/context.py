"""`Broker`: the parts that the handlers of one broker share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Protocol

from sparrow import clock
from sparrow.broker.catalog.groups import GroupCatalog
from sparrow.broker.catalog.queue_locks import QueueLocks
from sparrow.broker.catalog.topics import TopicCatalog
from sparrow.broker.clients.registry import ClientRegistry
from sparrow.broker.consume.long_poll import LongPollTable
from sparrow.broker.counters import TrafficCounters
from sparrow.broker.delay.spi import DelayScheduler
from sparrow.broker.pop.state.spi import PopState
from sparrow.broker.produce.stage_store import StageStore
from sparrow.broker.transactions.spi import TransactionCoordinator
from sparrow.model.queue import Queue
from sparrow.net.address import Address
from sparrow.settings import BrokerSettings
from sparrow.store.spi import BrokerStore


async def _nothing_to_hand_over() -> None:
    pass


class BackgroundWorker(Protocol):
    """A part with tasks of its own, started and stopped with the broker."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class RangeResender(Protocol):
    """Stores ranges of messages to be resent, where the store has tables for them."""

    async def request(self, queue: Queue, begin: int, end: int, *, group: str | None, readers: list[str]) -> None:
        """Store that offsets `begin` to before `end` go to a group, or to all readers, once more."""
        ...


@dataclass(kw_only=True)
class Broker:
    """One broker, without its sockets."""

    settings: BrokerSettings
    address: Address
    """The address that clients connect to. Message ids contain it."""
    store: BrokerStore
    topics: TopicCatalog
    groups: GroupCatalog
    clients: ClientRegistry
    long_polls: LongPollTable
    delay: DelayScheduler
    transactions: TransactionCoordinator
    pop_state: PopState
    stages_folder: InitVar[Path]
    """A folder that no other broker uses, for stages until they are committed."""
    resender: RangeResender | None = None
    """Stores ranges to be resent. None: `consume.resend` appends references at once."""
    workers: Sequence[BackgroundWorker] = ()
    """Stopped in reverse order."""
    now_ms: Callable[[], int] = clock.now_ms
    started_ms: int = field(init=False)
    stages: StageStore = field(init=False)
    queue_locks: QueueLocks = field(init=False)
    counters: TrafficCounters = field(default_factory=TrafficCounters)
    mean_record_bytes: dict[Queue, tuple[int, int]] = field(default_factory=dict)
    """For each sampled queue: its end at the time of the sample, and the mean size of a record."""
    broker_id: int = 0
    """The broker's id among brokers of the same name. Clients send to id 0."""
    hand_over: Callable[[], Awaitable[None]] = _nothing_to_hand_over
    """Waits until another broker has taken over the leader's work. The broker serves requests until then."""

    def __post_init__(self, stages_folder: Path) -> None:
        self.started_ms = self.now_ms()
        self.queue_locks = QueueLocks(self.settings.queue_lock_ms)
        files = self.store.files
        self.stages = StageStore(
            stages_folder,
            bytes_max=self.settings.stage_bytes_max,
            ttl_ms=self.settings.stage_ttl_hours * 3_600_000,
            now_ms=self.now_ms,
            syncs=files is not None and files.settings.flush == "sync",
        )

    async def start(self) -> None:
        """Load topics and groups, and start the background workers. Close the store if that fails."""
        try:
            await self.topics.load()
            await self.groups.load()
            for worker in self.workers:
                await worker.start()
            await self.stages.start()
        except BaseException:
            await self.store.close()
            raise

    async def stop(self) -> None:
        """Stop the background workers and close the store."""
        for worker in reversed(self.workers):
            await worker.stop()
        await self.stages.stop()
        await self.store.close()

    @property
    def name(self) -> str:
        return self.settings.name
