"""`sparrow cluster widen` and `drain`: spread topics over sets, and empty a set."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
import typer

from sparrow.cli.admin_client import AccessKeyOption, NameServersOption, SecretKeyOption
from sparrow.client import aio
from sparrow.client.options import DEFAULT_NAME_SERVERS
from sparrow.model.access.token import Credentials
from sparrow.model.errors import Refused, SparrowError
from sparrow.model.protocol import PERM_WRITE
from sparrow.model.topic import is_group_topic
from sparrow.wire import bodies
from sparrow.wire.bodies import TopicConfig, TopicConfigList, TopicList, TopicTable
from sparrow.wire.codes import RequestCode

WIDEN_EXAMPLES = "Example: [bold]sparrow cluster widen orders --to broker-b --name-servers mq-1:9876[/bold]"
DRAIN_EXAMPLES = (
    "Examples: [bold]sparrow cluster drain broker-a --name-servers mq-1:9876[/bold]   "
    "Take sends again: [bold]sparrow cluster drain broker-a --undo[/bold]   (exit code 3: not empty in time)"
)
NOT_EMPTY_EXIT_CODE = 3
_POLL_S = 1.0


class Backlog(NamedTuple):
    """What is left to read at a broker."""

    unread: dict[str, int]
    """Group -> messages that it has not read."""
    without_group: dict[str, int]
    """Topic -> messages that no group reads."""


def widen(
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    to: Annotated[str, typer.Option(help="Name of the set, or broker, that gets queues of the topic.")],
    queues: Annotated[
        int | None, typer.Option(help="Queues there; default: as many as where the topic is.", min=1, max=65_536)
    ] = None,
    name_servers: NameServersOption = DEFAULT_NAME_SERVERS,
    access_key: AccessKeyOption = None,
    secret_key: SecretKeyOption = None,
) -> None:
    """Give a topic queues on one more replica set. Producers and consumers use them from their next route on."""
    there = asyncio.run(_widen(_admin(name_servers, access_key, secret_key), topic, to, queues))
    typer.echo(f"Topic {topic!r} has queues on {', '.join(there)}.")


def drain(
    name: Annotated[str, typer.Argument(help="Name of the set, or broker, to be drained.")],
    wait: Annotated[bool, typer.Option(help="Wait until all groups have read everything.")] = True,
    timeout_s: Annotated[float | None, typer.Option(help="Give up waiting after so many seconds.", min=0)] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Let the topics be written again.")] = False,
    name_servers: NameServersOption = DEFAULT_NAME_SERVERS,
    access_key: AccessKeyOption = None,
    secret_key: SecretKeyOption = None,
) -> None:
    """Take no new messages at a replica set, and wait until the groups have read what it has.

    Its topics lose the write permission there; other sets of the topics take the messages. Retries are still stored.
    """
    admin = _admin(name_servers, access_key, secret_key)
    if undo:
        count = asyncio.run(_undo(admin, name))
        typer.echo(f"{count} topics of {name!r} take messages again.")
        return
    backlog = asyncio.run(_drain(admin, name, timeout_s if wait else 0))
    for topic, messages in sorted(backlog.without_group.items()):
        typer.echo(f"topic {topic!r}: {messages:,} messages that no group reads")
    if backlog.unread:
        left = ", ".join(f"{group} {count:,}" for group, count in sorted(backlog.unread.items()))
        typer.echo(f"{name!r} takes no new messages, and is not empty: {left}")
        if wait:
            raise typer.Exit(NOT_EMPTY_EXIT_CODE)
        return
    typer.echo(f"{name!r} is empty: each group has read everything.")


def _admin(name_servers: str, access_key: str | None, secret_key: str | None) -> aio.Admin:
    credentials = None
    if access_key is not None or secret_key is not None:
        credentials = Credentials(access_key or "", secret_key or "")
    return aio.Admin(name_servers, credentials=credentials)


async def _widen(admin: aio.Admin, topic: str, to: str, queues: int | None) -> list[str]:
    async with admin:
        masters = (await admin.route(topic)).masters
        target = await _leader_of(admin, to)
        if to in masters:
            raise Refused(f"topic {topic!r} has queues on {to!r} already")
        if not masters:
            raise Refused(f"no broker of topic {topic!r} has a leader now: its configuration cannot be read")
        config = (await _topics_of(admin, next(iter(masters.values()))))[topic]
        if queues is not None:
            config = msgspec.structs.replace(config, read_queue_nums=queues, write_queue_nums=queues)
        config = msgspec.structs.replace(config, perm=config.perm | PERM_WRITE)
        await _put(admin, target, [config])
        async with asyncio.timeout(admin.session.timeout_ms / 1000):
            while True:
                found = (await admin.session.route(topic, is_fresh=True)).masters
                if to in found:
                    return sorted(found)
                await asyncio.sleep(0.05)


async def _undo(admin: aio.Admin, name: str) -> int:
    async with admin:
        address = await _leader_of(admin, name)
        drained = [one for one in await _user_topics(admin, address) if not one.perm & PERM_WRITE]
        await _put(admin, address, [msgspec.structs.replace(one, perm=one.perm | PERM_WRITE) for one in drained])
        return len(drained)


async def _drain(admin: aio.Admin, name: str, timeout_s: float | None) -> Backlog:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    async with admin:
        while True:
            # Each time: a first message may have created another topic here.
            address = await _leader_of(admin, name)
            writable = [one for one in await _user_topics(admin, address) if one.perm & PERM_WRITE]
            await _put(admin, address, [msgspec.structs.replace(one, perm=one.perm & ~PERM_WRITE) for one in writable])
            backlog = await _backlog(admin, name)
            if not backlog.unread or (deadline is not None and time.monotonic() >= deadline):
                return backlog
            typer.echo(f"{sum(backlog.unread.values()):,} messages are unread", err=True)
            await asyncio.sleep(_POLL_S)


async def _leader_of(admin: aio.Admin, name: str) -> str:
    brokers = {broker: ids for found in (await admin.clusters()).values() for broker, ids in found.brokers.items()}
    if name not in brokers:
        known = ", ".join(sorted(brokers)) or "none"
        raise Refused(f"the name server knows no broker {name!r}, only {known}: check the name")
    if 0 not in brokers[name]:
        raise Refused(f"{name!r} has no leader now: see `sparrow cluster status --name {name}`")
    return brokers[name][0]


async def _topics_of(admin: aio.Admin, address: str) -> dict[str, TopicConfig]:
    answer = await admin.session.invoke(address, RequestCode.GET_ALL_TOPIC_CONFIG)
    return bodies.read(TopicTable, answer.body).topic_config_table


async def _user_topics(admin: aio.Admin, address: str) -> list[TopicConfig]:
    answer = await admin.session.invoke(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    system = set(bodies.read(TopicList, answer.body).topic_list)
    topics = await _topics_of(admin, address)
    return [config for name, config in sorted(topics.items()) if name not in system and not is_group_topic(name)]


async def _put(admin: aio.Admin, address: str, configs: Sequence[TopicConfig]) -> None:
    if configs:
        body = bodies.write(TopicConfigList(list(configs)))
        await admin.session.invoke(address, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body)


async def _backlog(admin: aio.Admin, name: str) -> Backlog:
    unread: dict[str, int] = {}
    read_topics: set[str] = set()
    for group in await admin.groups():
        try:
            progress = await admin.progress(group)
        except SparrowError:
            continue  # it reads nothing
        here = {queue: one for queue, one in progress.queues.items() if queue.broker_name == name}
        read_topics |= {queue.topic for queue in here}
        if (lag := sum(one.lag for one in here.values())) > 0:
            unread[group] = lag
    without_group: dict[str, int] = {}
    for config in await _user_topics(admin, await _leader_of(admin, name)):
        topic = str(config.topic_name)
        if topic in read_topics:
            continue
        bounds = await admin.topic_bounds(topic)
        count = sum(one.end - one.first for queue, one in bounds.items() if queue.broker_name == name)
        if count:
            without_group[topic] = count
    return Backlog(unread, without_group)
