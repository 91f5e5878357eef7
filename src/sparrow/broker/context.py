"""`Broker`: the parts that the handlers of one broker share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Protocol

from sparrow import clock
from sparrow.broker.access.authorizer import RequestAuthorizer
from sparrow.broker.catalog.groups import GroupCatalog
from sparrow.broker.catalog.queue_locks import QueueLocks
from sparrow.broker.catalog.topics import TopicCatalog
from sparrow.broker.clients.registry import ClientRegistry
from sparrow.broker.consume.group_positions import GroupPositions
from sparrow.broker.consume.long_poll import LongPollTable
from sparrow.broker.counters import TrafficCounters
from sparrow.broker.delay.spi import DelayScheduler
from sparrow.broker.metrics.event_counters import EventCounters
from sparrow.broker.pop.state.spi import PopState
from sparrow.broker.produce.stage_store import StageStore
from sparrow.broker.routes import name_server_access
from sparrow.broker.transactions.spi import TransactionCoordinator
from sparrow.model.access.permissions import TokenAction
from sparrow.model.queue import Queue
from sparrow.net.access.peer_access import PeerAccess
from sparrow.net.address import Address
from sparrow.net.dispatcher import RequestContext
from sparrow.net.request_meter import RequestMeter
from sparrow.settings import BrokerSettings
from sparrow.store.spi import BrokerStore, ReadResult
from sparrow.wire.frame import RemotingCommand, decode_ext_fields
from sparrow.wire.signing import ACCESS_KEY_FIELD


async def _nothing_to_hand_over() -> None:
    pass


class BackgroundWorker(Protocol):
    """A part with tasks of its own, started and stopped with the broker."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class RangeResender(Protocol):
    """Stores ranges of messages to be resent, where the store has tables for them."""

    async def request(
        self, queue: Queue, begin: int, end: int, *, group: str | None, readers: list[str], token: int
    ) -> None:
        """Store that offsets `begin` to before `end` go to a group, or to all readers, once more.

        `token` is the number of the token that requested it, or 0.
        """
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
    monotonic_ms: Callable[[], int] = clock.monotonic_ms
    """The clock of locks and of the silence of clients; nobody sets it."""
    started_ms: int = field(init=False)
    remembers_tokens: bool = field(init=False)
    """Whether the store keeps with each message who sent it, and requests are signed."""
    name_server_access: PeerAccess = field(init=False)
    stages: StageStore = field(init=False)
    queue_locks: QueueLocks = field(init=False)
    counters: TrafficCounters = field(default_factory=TrafficCounters)
    events: EventCounters = field(default_factory=EventCounters)
    positions: GroupPositions = field(default_factory=GroupPositions)
    authorizer: RequestAuthorizer | None = None
    """Checks requests; None: `auth` is off."""
    requests: RequestMeter | None = None
    """The times of requests; None before the broker serves any."""
    mean_record_bytes: dict[Queue, tuple[int, int]] = field(default_factory=dict)
    """For each sampled queue: its end at the time of the sample, and the mean size of a record."""
    scan_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the scan of many queues (`query.queue_scan`) that runs now."""
    listing_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a list of all topics, groups or offsets is encoded, in a thread."""
    token_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a token is read and changed."""
    broker_id: int = 0
    """The broker's id among brokers of the same name. Clients send to id 0."""
    is_follower: bool = False
    """Whether it only serves reads, of what a leader has written. It creates and commits nothing."""
    has_leader: Callable[[], bool] = lambda: True
    """Returns whether a leader is known, to which a follower may send its clients."""
    advised_broker_id: Callable[[Queue, ReadResult | None], int] = lambda queue, found: 0
    """Returns the id of the broker of this name to which the next pull of a queue should go, after this result."""
    hand_over: Callable[[], Awaitable[None]] = _nothing_to_hand_over
    """Waits until another broker has taken over the leader's work. The broker serves requests until then."""

    def __post_init__(self, stages_folder: Path) -> None:
        self.started_ms = self.now_ms()
        self.remembers_tokens = self.store.remembers_tokens and self.settings.auth
        self.name_server_access = name_server_access(self.settings)
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
        """Load topics and groups, and start the background workers; if that fails, none is left running."""
        await self.topics.load()
        await self.groups.load()
        started: list[BackgroundWorker] = []
        try:
            for worker in self.workers:
                started.append(worker)
                await worker.start()
            await self.stages.start()
        except BaseException:
            for worker in reversed(started):
                await worker.stop()
            raise

    async def stop(self) -> None:
        """Stop the background workers and close the store."""
        await self.stop_workers()
        await self.store.close()

    async def stop_workers(self) -> None:
        """Stop the background workers; the store stays open."""
        for worker in reversed(self.workers):
            await worker.stop()
        await self.stages.stop()

    def token_of(self, command: RemotingCommand) -> int:
        """Return the number of the token that signed a request; 0 if the store does not keep it with messages."""
        if not self.remembers_tokens:
            return 0
        return self.store.tokens.id_nowait(decode_ext_fields(command.ext).get(ACCESS_KEY_FIELD, ""))

    def may(self, call: RequestContext, action: TokenAction, topic: str, group: str | None = None) -> bool:
        """Return whether the sender of a request may take an action on a topic that the request does not name."""
        if self.authorizer is None or self.authorizer.may(call.command, action, topic, group, call.channel.host):
            return True
        if call.channel.gate is not None:
            call.channel.gate.refusals.note_denied()
        return False

    @property
    def name(self) -> str:
        return self.settings.name
