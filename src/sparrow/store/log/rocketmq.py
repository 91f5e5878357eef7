"""State that Apache RocketMQ keeps in `config/*.json`, as words for our log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparrow.model.errors import ProtocolError
from sparrow.model.topic import Group, Topic, is_legal_name
from sparrow.store.log.views import GroupSaid, OffsetsSaid, TopicSaid, Word
from sparrow.wire import dialect

log = logging.getLogger(__name__)


def words_in(config: Path) -> list[Word]:
    """What topics, groups and offsets there are, by RocketMQ's files."""
    return [
        *_topics(_table(config / "topics.json", "topicConfigTable")),
        *_groups(_table(config / "subscriptionGroup.json", "subscriptionGroupTable")),
        *_offsets(_table(config / "consumerOffset.json", "offsetTable")),
    ]


def _table(path: Path, name: str) -> dict[str, Any]:
    """One table of a file, or of its back-up where the file is missing or damaged."""
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            parsed = dialect.parse(candidate.read_bytes())
            table = parsed[name]
        except FileNotFoundError:
            continue
        except (ProtocolError, KeyError, TypeError) as cause:
            log.warning("a damaged file is left aside", extra={"path": str(candidate), "why": str(cause)})
            continue
        if isinstance(table, dict):
            return table
    return {}


def _topics(table: dict[str, Any]) -> Iterator[Word]:
    for name, config in table.items():
        if is_legal_name(name) and isinstance(config, dict):
            topic = Topic(
                name=name,
                read_queues=int(config.get("readQueueNums", 8)),
                write_queues=int(config.get("writeQueueNums", 8)),
                permission=int(config.get("perm", 6)),
                is_ordered=bool(config.get("order", False)),
                sys_flag=int(config.get("topicSysFlag", 0)),
                attributes={str(key): str(value) for key, value in (config.get("attributes") or {}).items()},
            )
            yield TopicSaid(name, topic)


def _groups(table: dict[str, Any]) -> Iterator[Word]:
    for name, config in table.items():
        if is_legal_name(name) and isinstance(config, dict):
            group = Group(
                name=name,
                may_consume=bool(config.get("consumeEnable", True)),
                may_broadcast=bool(config.get("consumeBroadcastEnable", True)),
                is_ordered=bool(config.get("consumeMessageOrderly", False)),
                retry_queues=int(config.get("retryQueueNums", 1)),
                retries_max=int(config.get("retryMaxTimes", 16)),
            )
            yield GroupSaid(name, group)


def _offsets(table: dict[str, Any]) -> Iterator[Word]:
    for name, offsets in table.items():
        topic, _, group = name.partition("@")
        if topic and group and isinstance(offsets, dict):
            yield OffsetsSaid(topic, group, {int(queue_id): int(offset) for queue_id, offset in offsets.items()})
