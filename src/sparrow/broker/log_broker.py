"""What a broker is made of on a log store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from sparrow.broker.catalog.groups import Groups
from sparrow.broker.catalog.queue_locks import QueueLocks
from sparrow.broker.catalog.topics import Topics
from sparrow.broker.clients.registry import Members
from sparrow.broker.consume.long_poll import Hold
from sparrow.broker.context import Broker
from sparrow.broker.counters import Counters
from sparrow.broker.delay.log import Delay
from sparrow.broker.pop.revive import Remembering, Reviving
from sparrow.broker.pop.state.log import Pops
from sparrow.broker.produce.stage_store import Stages
from sparrow.broker.retention.archive_progress import Archived
from sparrow.broker.transactions.log import Transactions
from sparrow.net.address import Address
from sparrow.settings import BrokerSettings, LogSettings
from sparrow.store.log import LogStore

STAGES = "stages"
"""The folder of stages, in that of the store."""


async def opened(
    path: Path,
    settings: BrokerSettings,
    log_settings: LogSettings,
    *,
    address: Address,
    hold: Hold,
    now_ms: Callable[[], int],
) -> Broker:
    """Open the store, and hear from it where everything had got."""
    archived = Archived(log_settings.retention_waits_for)
    store = await asyncio.to_thread(
        LogStore,
        path,
        log_settings,
        store_host=address.as_host(),
        on_growth=hold.grew,
        archived_to=archived,
        now_ms=now_ms,
    )
    archived.in_store(store)
    topics, members = Topics(store, settings, now_ms), Members()
    groups = Groups(store, settings, now_ms)
    delay = Delay(
        store,
        horizon_ms=settings.delay_horizon_ms,
        rolls_after_ms=int(store.settings.retention_hours * 3_600_000 / 2),
        now_ms=now_ms,
    )
    transactions = Transactions(store, topics, members, settings, now_ms=now_ms)
    pops = Pops(store, topics, cluster=settings.cluster, now_ms=now_ms)
    reviving = Reviving(pops, store, topics, groups, hold, now_ms=now_ms)
    broker = Broker(
        settings=settings,
        address=address,
        store=store,
        topics=topics,
        groups=groups,
        members=members,
        locks=QueueLocks(settings.lock_ms),
        hold=hold,
        counters=Counters(),
        delay=delay,
        transactions=transactions,
        pops=pops,
        stages=Stages(
            path / STAGES,
            bytes_max=settings.stage_bytes_max,
            ttl_ms=settings.stage_ttl_hours * 3_600_000,
            now_ms=now_ms,
            syncs=store.settings.flush == "sync",
        ),
        parts=(delay, transactions, Remembering(pops, reviving)),
        started_ms=now_ms(),
        now_ms=now_ms,
    )
    try:
        await topics.load()
        await groups.load()
        for part in broker.parts:
            await part.start()
        await broker.stages.start()
    except BaseException:
        await store.close()
        raise
    return broker
