"""Import of the state that Apache RocketMQ keeps in `config`, as state updates.

The progress of delayed deliveries becomes marks: `timers.from.N` (where queue N of the schedule topic continues) and
`timers.wheel_ms` (up to which time timers are delivered). So does the choice of groups to pop: `pop.mode GROUP TOPIC`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sparrow.model.errors import ProtocolError, Refused
from sparrow.model.topic import Group, Topic, validate_group_name, validate_topic_name
from sparrow.store.log.state.updates import GroupUpdate, MarkUpdate, OffsetsUpdate, StateUpdate, TopicUpdate
from sparrow.wire.bodies import fastjson

log = logging.getLogger(__name__)


def read_rocketmq_config(config: Path) -> list[StateUpdate]:
    """Read topics, groups, offsets, request modes and the progress of delayed deliveries from RocketMQ's files."""
    return [
        *_updates(config / "topics.json", "topicConfigTable", _topic),
        *_updates(config / "subscriptionGroup.json", "subscriptionGroupTable", _group),
        *_updates(config / "consumerOffset.json", "offsetTable", _offsets),
        *_updates(config / "delayOffset.json", "offsetTable", _level),
        *_wheel(config / "timercheck"),
        *_request_modes(config / "messageRequestMode.json"),
    ]


def _updates(path: Path, table: str, update_of: Callable[[str, Any], StateUpdate]) -> Iterator[StateUpdate]:
    for name, value in _table(path, table).items():
        try:
            yield update_of(name, value)
        except (TypeError, ValueError, AttributeError, Refused) as cause:
            log.warning(
                "entry %(entry)s of %(path)s is invalid and is skipped: %(error)s",
                {"entry": name, "path": path, "error": cause},
            )


def _table(path: Path, name: str) -> dict[str, Any]:
    """Return one table of a file, or of its back-up if the file is missing or damaged."""
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            parsed = fastjson.parse(candidate.read_bytes())
            table = parsed[name]
        except FileNotFoundError:
            continue
        except (ProtocolError, KeyError, TypeError) as cause:
            log.warning("file %(path)s is damaged and is skipped: %(error)s", {"path": candidate, "error": cause})
            continue
        if isinstance(table, dict):
            return table
    return {}


def _topic(name: str, config: dict[str, Any]) -> StateUpdate:
    topic = Topic(
        name=validate_topic_name(name),
        read_queues=int(config.get("readQueueNums", 8)),
        write_queues=int(config.get("writeQueueNums", 8)),
        permission=int(config.get("perm", 6)),
        is_ordered=bool(config.get("order", False)),
        sys_flag=int(config.get("topicSysFlag", 0)),
        attributes={str(key): str(value) for key, value in (config.get("attributes") or {}).items()},
    )
    return TopicUpdate(name, topic)


def _group(name: str, config: dict[str, Any]) -> StateUpdate:
    group = Group(
        name=validate_group_name(name),
        may_consume=bool(config.get("consumeEnable", True)),
        may_broadcast=bool(config.get("consumeBroadcastEnable", True)),
        is_ordered=bool(config.get("consumeMessageOrderly", False)),
        retry_queues=int(config.get("retryQueueNums", 1)),
        retries_max=int(config.get("retryMaxTimes", 16)),
    )
    return GroupUpdate(name, group)


def _offsets(name: str, offsets: dict[str, Any]) -> StateUpdate:
    topic, _, group = name.partition("@")
    return OffsetsUpdate(
        validate_topic_name(topic),
        validate_group_name(group),
        {int(queue_id): int(at) for queue_id, at in offsets.items()},
    )


def _level(level: str, offset: Any) -> StateUpdate:
    """Convert the offset of a delay level; queues count from 0, levels from 1."""
    if int(level) < 1:
        raise ValueError("levels start at 1")
    return MarkUpdate(f"timers.from.{int(level) - 1}", int(offset))


def _wheel(path: Path) -> Iterator[StateUpdate]:
    """Read the time in ms up to which the timer wheel has delivered, at the begin of the file."""
    try:
        read_ms = int.from_bytes(path.read_bytes()[:8], "big", signed=True)
    except FileNotFoundError:
        return
    if read_ms > 0:
        yield MarkUpdate("timers.wheel_ms", read_ms)


def _request_modes(path: Path) -> Iterator[StateUpdate]:
    """Read which groups pop a topic, and with how many members they share its queues."""
    for topic, groups in _table(path, "messageRequestModeMap").items():
        for group, choice in groups.items() if isinstance(groups, dict) else ():
            if isinstance(choice, dict) and choice.get("mode") == "POP":
                yield MarkUpdate(f"pop.mode {group} {topic}", max(-1, int(choice.get("popShareQueueNum", 0))))
