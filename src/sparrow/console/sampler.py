"""The sampler: reads offsets of all topics and groups at an interval, and keeps rates and lag for charts.

1. A sample costs a handful of requests for each broker, however many topics and groups exist; pages read the result.
2. Rates are differences of offsets, so they are right for brokers of any kind, and cost brokers nothing.
3. Histories are bounded: a ring of samples for each of at most `SERIES_MAX` topics and groups; the rest has none.
4. When brokers are away, the last sample stays, with the error and its time.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from sparrow import clock
from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.admin.broker_state import (
    CommittedOffsets,
    TopicTables,
    fetch_committed_offsets,
    fetch_topic_tables,
)
from sparrow.client.aio.admin.group_state import count_members
from sparrow.console.latency import LatencyWindow
from sparrow.model.errors import SparrowError
from sparrow.operations.clusters import ClusterState, fetch_cluster
from sparrow.operations.groups import GroupSummary, lags_by_group, summarise_groups
from sparrow.operations.topics import TopicKind, TopicSummary, fetch_server_names, summarise_topics

log = logging.getLogger(__name__)

SERIES_MAX = 4_000
"""Topics, and pairs of group and topic, that have a history."""
MEMBERS_EVERY = 3
"""Members are counted in every third sample: they cost a request for each group."""

TOTALS = ("in_per_s", "out_per_s", "lag", "connections", "send_p50_ms", "send_p99_ms")
"""Figures of the whole cluster that have a history."""

GroupTopicKey = tuple[str, str]
K = TypeVar("K")


class Ring:
    """The newest values of a figure, one for each sample. A sample without the figure has NaN."""

    __slots__ = ("_count", "_values")

    def __init__(self, size: int) -> None:
        self._values, self._count = array("d", [float("nan")]) * size, 0

    def put(self, sample: int, value: float) -> None:
        """Set the value of a sample; samples that were left out become NaN."""
        size = len(self._values)
        for missed in range(max(self._count, sample - size), sample):
            self._values[missed % size] = float("nan")
        self._values[sample % size] = value
        self._count = sample + 1

    def values(self, sample: int) -> list[float | None]:
        """Return the values up to a sample, the oldest first; None where there is none."""
        size = len(self._values)
        found = [
            self._values[at % size] if at < self._count and at >= self._count - size else float("nan")
            for at in range(max(0, sample + 1 - size), sample + 1)
        ]
        return [None if value != value else value for value in found]


class ClusterSample(msgspec.Struct, frozen=True, kw_only=True):
    """The newest sample."""

    number: int
    time_ms: int
    cluster: ClusterState
    topics: tuple[TopicSummary, ...]
    groups: tuple[GroupSummary, ...]
    lags: Mapping[GroupTopicKey, int]
    """(group, topic) to lag in messages."""
    in_per_s: Mapping[str, float]
    """Topic to messages that arrived per second."""
    out_per_s: Mapping[GroupTopicKey, float]
    """(group, topic) to messages read per second."""
    connections: int | None
    """Connections of clients to all brokers; None if no broker reports them."""
    send_p50_ms: float | None
    send_p99_ms: float | None
    """How long sends took in the last minute; None without sends."""


class Sampler:
    """Samples one cluster."""

    def __init__(self, admin: Admin, *, interval_ms: int, count: int) -> None:
        self._admin, self._interval_s, self._size = admin, interval_ms / 1000, count
        self.snapshot: ClusterSample | None = None
        self.error: str | None = None
        """Why the last attempt failed; None if it succeeded."""
        self.error_ms: int | None = None
        self.times: list[int] = []
        """Times of the samples in the rings, the oldest first."""
        self._topic_in: dict[str, Ring] = {}
        self._group_out: dict[GroupTopicKey, Ring] = {}
        self._group_lag: dict[GroupTopicKey, Ring] = {}
        self._totals = {name: Ring(count) for name in TOTALS}
        self._latency = LatencyWindow()
        self._ends: dict[str, int] = {}
        self._read: dict[GroupTopicKey, int] = {}
        self._members: dict[str, int] = {}
        self._changed, self._reading, self._is_stale = asyncio.Condition(), asyncio.Lock(), False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to sample in the background."""
        if self._task is None:
            self._task = asyncio.create_task(self._keep_sampling(), name="sampler")

    async def stop(self) -> None:
        """Stop sampling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def invalidate(self) -> None:
        """Make the next reader read topics and groups again, because the console has changed them."""
        self._is_stale = True

    async def latest(self) -> ClusterSample:
        """Return the newest sample; make one if there is none, or read it again after a change."""
        if self.snapshot is None or self._is_stale:
            async with self._reading:
                if self.snapshot is None or self._is_stale:
                    self._is_stale = False
                    await self._sample(is_recorded=self.snapshot is None)
        assert self.snapshot is not None, "sample sets it or raises"
        return self.snapshot

    async def wait_change(self, number: int, error: str | None) -> None:
        """Wait until there is a sample after this number, or the cluster is away, or back, unlike this error says."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: (self.snapshot is not None and self.snapshot.number > number) or self.error != error
            )

    # -- histories ----------------------------------------------------------------------------------------------------

    def total_series(self) -> dict[str, list[float | None]]:
        """Return the history of the sums over all topics and groups."""
        return {name: self._series(ring) for name, ring in self._totals.items()}

    def topic_series(self, topic: str) -> list[float | None]:
        """Return the history of the messages per second that arrived; empty if the topic has none."""
        return self._series(self._topic_in.get(topic))

    def group_series(self, group: str, topic: str) -> dict[str, list[float | None]]:
        """Return the history of the lag and of the messages per second that were read."""
        key = group, topic
        return {"lag": self._series(self._group_lag.get(key)), "out_per_s": self._series(self._group_out.get(key))}

    def group_lag_series(self, group: str, topics: Iterable[str], count: int) -> list[float | None]:
        """Return the newest values of the lag of a group on these topics together."""
        rings = [ring for topic in topics if (ring := self._group_lag.get((group, topic))) is not None]
        histories = [self._series(ring)[-count:] for ring in rings]
        known = [[value for value in values if value is not None] for values in zip(*histories, strict=True)]
        return [sum(values) if values else None for values in known]

    def _series(self, ring: Ring | None) -> list[float | None]:
        return [] if ring is None or self.snapshot is None else ring.values(self.snapshot.number)

    # -- sampling -----------------------------------------------------------------------------------------------------

    async def _keep_sampling(self) -> None:
        while True:
            try:
                await self.sample()
            except SparrowError as error:
                if self.error is None:
                    log.warning("cannot sample the cluster: %(error)s", {"error": error})
                await self._note_failure(str(error))
            except Exception:
                log.exception("cannot sample the cluster")
                await self._note_failure("an internal error: see the log of the console")
            await asyncio.sleep(self._interval_s)

    async def _note_failure(self, error: str) -> None:
        async with self._changed:
            self.error, self.error_ms = error, clock.now_ms()
            self._changed.notify_all()

    async def sample(self) -> ClusterSample:
        """Read all offsets once, record rates and histories, and publish the snapshot."""
        async with self._reading:  # two samples at a time would record one in parts
            return await self._sample()

    async def _sample(self, *, is_recorded: bool = True) -> ClusterSample:
        """Read all offsets once, and publish the snapshot. Without `is_recorded`, rates and histories stay."""
        admin, known = self._admin, self.snapshot
        cluster, servers, tables, committed, configs = await asyncio.gather(
            fetch_cluster(admin),
            fetch_server_names(admin),
            fetch_topic_tables(admin.session),
            fetch_committed_offsets(admin.session),
            admin.groups(),
        )
        await self._keep_connections(cluster)
        names = sorted(configs.keys() | {group for table in committed.values() for _, group in table})
        number = known.number + 1 if known is not None else 0
        if number % MEMBERS_EVERY == 0 and is_recorded:
            self._members = await count_members(admin.session, names)
        topics = tuple(summarise_topics(tables, servers))
        groups = tuple(summarise_groups(names, configs, committed, tables, self._members))
        lags = lags_by_group(committed, tables.bounds)
        connections = _sum_known(broker.connections for broker in cluster.brokers)
        if is_recorded or known is None:
            in_per_s, out_per_s = self._record(number, topics, tables, committed, lags)
            time_ms = self.times[-1]
            self._latency.add(cluster.brokers)
        else:
            number, time_ms, in_per_s, out_per_s = known.number, known.time_ms, known.in_per_s, known.out_per_s
        p50_ms, p99_ms = self._latency.percentile(0.5), self._latency.percentile(0.99)
        for name, value in (("connections", connections), ("send_p50_ms", p50_ms), ("send_p99_ms", p99_ms)):
            if value is not None:
                self._totals[name].put(number, value)
        snapshot = ClusterSample(
            number=number,
            time_ms=time_ms,
            cluster=cluster,
            topics=topics,
            groups=groups,
            lags=lags,
            in_per_s=in_per_s,
            out_per_s=out_per_s,
            connections=connections,
            send_p50_ms=p50_ms,
            send_p99_ms=p99_ms,
        )
        async with self._changed:
            self.snapshot, self.error, self.error_ms = snapshot, None, None
            self._changed.notify_all()
        return snapshot

    async def _keep_connections(self, cluster: ClusterState) -> None:
        """Cache a route to every broker: the session closes connections that no cached route needs.

        Brokers register a topic with the name of their cluster.
        """
        for name in {broker.cluster for broker in cluster.brokers}:
            if self._admin.session.cached_route(name) is None:
                try:
                    await self._admin.session.route(name)
                except SparrowError:
                    pass  # the connection is opened again when it is used

    def _record(
        self,
        number: int,
        topics: Iterable[TopicSummary],
        tables: TopicTables,
        committed: CommittedOffsets,
        lags: Mapping[GroupTopicKey, int],
    ) -> tuple[Mapping[str, float], Mapping[GroupTopicKey, float]]:
        """Add a sample to the histories, and return the rates since the one before."""
        now_ms = clock.now_ms()
        passed_s = (now_ms - self.times[-1]) / 1000 if self.times else 0.0
        ends: dict[str, int] = {}
        for queue, bound in tables.bounds.items():
            ends[queue.topic] = ends.get(queue.topic, 0) + bound.end
        read: dict[GroupTopicKey, int] = {}
        for table in committed.values():
            for (topic, group), offsets in table.items():
                read[group, topic] = read.get((group, topic), 0) + sum(offsets.values())
        in_per_s = _rates(ends, self._ends, passed_s)
        out_per_s = _rates(read, self._read, passed_s)
        self._ends, self._read = ends, read
        self.times = [*self.times[-self._size + 1 :], now_ms]
        _append(self._topic_in, in_per_s, number, self._size)
        _append(self._group_out, out_per_s, number, self._size)
        _append(self._group_lag, lags, number, self._size)
        plain = {topic.name for topic in topics if topic.kind is TopicKind.NORMAL}
        self._totals["in_per_s"].put(number, sum(rate for name, rate in in_per_s.items() if name in plain))
        self._totals["out_per_s"].put(number, sum(out_per_s.values()))
        self._totals["lag"].put(number, sum(lags.values()))
        return in_per_s, out_per_s


def _sum_known(values: Iterable[int | None]) -> int | None:
    """Return the sum of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _rates(now: Mapping[K, int], before: Mapping[K, int], passed_s: float) -> dict[K, float]:
    """Return the growth per second. What is new or was set back has the rate 0."""
    if passed_s <= 0:
        return dict.fromkeys(now, 0.0)
    return {key: max(0, value - before.get(key, value)) / passed_s for key, value in now.items()}


def _append(rings: dict[K, Ring], values: Mapping[K, float], number: int, size: int) -> None:
    """Add a sample to the rings, and drop those of topics and groups that are gone."""
    for gone in rings.keys() - values.keys():
        del rings[gone]
    for key, value in values.items():
        ring = rings.get(key)
        if ring is None:
            if len(rings) >= SERIES_MAX:
                continue
            ring = rings[key] = Ring(size)
        ring.put(number, value)
