"""Assembles a broker on a database, which it may share with other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sparrow.broker.catalog.groups import GroupCatalog
from sparrow.broker.catalog.topics import TopicCatalog
from sparrow.broker.clients.registry import ClientRegistry
from sparrow.broker.consume.long_poll import LongPollTable
from sparrow.broker.consume.pull_advice import PullAdvisor
from sparrow.broker.consume.resend_sql import SqlResender
from sparrow.broker.context import Broker
from sparrow.broker.delay.sql import SqlDelayScheduler
from sparrow.broker.leadership import Leadership
from sparrow.broker.metrics.event_counters import EventCounters
from sparrow.broker.pop.revive import Reviver
from sparrow.broker.pop.state.sql import SqlPopState
from sparrow.broker.retention.sql import SqlRetention
from sparrow.broker.transactions.sql import SqlTransactionCoordinator
from sparrow.net.address import Address
from sparrow.settings import BrokerSettings, SqlSettings
from sparrow.store.sql.engine import SqlStore
from sparrow.wire.record import pack_host


async def open_sql_broker(
    url: str,
    folder: Path,
    settings: BrokerSettings,
    sql_settings: SqlSettings,
    *,
    address: Address,
    long_polls: LongPollTable,
    now_ms: Callable[[], int],
) -> Broker:
    """Open the database, load topics and groups, and acquire a number among the brokers on it.

    The folder holds what belongs to this broker alone: stages, until they are committed.
    """
    host = address.as_host()
    store = await SqlStore.open(
        url,
        sql_settings,
        owner=str(address),
        store_host=host,
        on_growth=long_polls.notify_growth,
        is_awaited=long_polls.is_awaited,
        admin_tokens=settings.admin_tokens if settings.auth else (),
        now_ms=now_ms,
    )
    # Each part of a topic is a dozen tables: topics that are created automatically get one.
    settings = settings.model_copy(update={"topic_queues": 1})
    topics, clients = TopicCatalog(store, settings, now_ms, stores_system_topics=False), ClientRegistry()
    groups, events = GroupCatalog(store, settings, now_ms), EventCounters()
    delay = SqlDelayScheduler(store, horizon_ms=settings.delay_horizon_ms, now_ms=now_ms)
    transactions = SqlTransactionCoordinator(
        store, topics, clients, settings, store_host=pack_host(host), now_ms=now_ms, events=events
    )
    resender = SqlResender(store, topics, clients)
    pop_state = SqlPopState(store, long_polls, now_ms=now_ms)
    reviver = Reviver(pop_state, store, topics, groups, long_polls, now_ms=now_ms, events=events)
    broker = Broker(
        settings=settings,
        address=address,
        store=store,
        topics=topics,
        groups=groups,
        clients=clients,
        long_polls=long_polls,
        delay=delay,
        transactions=transactions,
        pop_state=pop_state,
        stages_folder=folder / f"stages-{address.port}",  # brokers that share a database may share a folder
        resender=resender,
        events=events,
        now_ms=now_ms,
    )

    advisor = PullAdvisor(store)
    broker.advised_broker_id = advisor.advised_broker_id

    async def set_number(number: int) -> None:
        broker.broker_id = advisor.broker_id = number
        await topics.set_leader_term(store.epoch)

    work = (
        delay.run_as_leader,
        transactions.run_as_leader,
        resender.run_as_leader,
        partial(pop_state.run_as_leader, reviver.run),
        SqlRetention(store).run_as_leader,
    )
    leading = Leadership(store, work=work, on_change=set_number)
    broker.workers, broker.hand_over = (leading, advisor), leading.leave
    changes: set[asyncio.Task[None]] = set()

    def apply_catalog() -> None:
        """Apply the topics and groups that other brokers have created or changed."""
        groups.replace_all(store.catalog.groups)
        if topics.replace_all(store.catalog.topics):
            task = asyncio.get_running_loop().create_task(topics.announce())
            changes.add(task)
            task.add_done_callback(changes.discard)

    try:
        await broker.start()
    except BaseException:
        await store.close()
        raise
    store.on_refresh, store.on_restart = apply_catalog, pop_state.forget
    return broker
