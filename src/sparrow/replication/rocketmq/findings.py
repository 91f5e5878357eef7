"""What a master's configuration and metadata mean for following and promoting it: pure rules over its answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from sparrow.replication.rocketmq.metadata import table_of
from sparrow.replication.rocketmq.popped_messages import PoppedMessages
from sparrow.settings import GIB

MigrationFindingKind = Literal["blocks", "warns"]
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


class MigrationFinding(msgspec.Struct, frozen=True):
    """One sentence for the operator. `blocks`: the master cannot be followed; `warns`: something stays behind."""

    kind: MigrationFindingKind
    text: str


def check_configuration(settings: dict[str, str], *, segment_bytes: int | None) -> list[MigrationFinding]:
    """Check the master's settings. `segment_bytes`: the segment size of our store, None if it is new."""
    return [
        *(MigrationFinding("blocks", text) for text in _obstacles(settings, segment_bytes)),
        *(MigrationFinding("warns", text) for text in _settings_left_behind(settings)),
    ]


def check_metadata(metadata: dict[str, bytes]) -> list[MigrationFinding]:
    """Check topics and groups for what Sparrow has no equivalent of."""
    return [MigrationFinding("warns", text) for text in _metadata_left_behind(metadata)]


def check_popped(popped: list[PoppedMessages]) -> list[MigrationFinding]:
    """Say which messages in flight are delivered again."""
    return [
        MigrationFinding(
            "warns",
            f"group {each.group} has popped {each.count} messages of {each.topic}/{each.queue_id} that are not "
            f"acknowledged: it starts again at offset {each.first}. Let pop groups run empty to avoid repeats",
        )
        for each in popped
    ]


def _is_on(settings: dict[str, str], name: str) -> bool:
    return settings.get(name, "false").lower() == "true"


def _obstacles(settings: dict[str, str], segment_bytes: int | None) -> Iterator[str]:
    if _is_on(settings, "enableDLegerCommitLog"):
        yield "the master uses DLedger, which wraps every record: copy its topics with `sparrow pipeline forward`"
    if _is_on(settings, "enableControllerMode"):
        yield (
            "the master is in controller mode, which has another HA protocol: restart it as a classic master "
            "(enableControllerMode=false) before following it"
        )
    if settings.get("brokerRole") == "SLAVE":
        yield "this broker is a slave: follow its master"
    size = int(settings.get("mappedFileSizeCommitLog", GIB))
    if size > GIB:
        yield f"the commit-log files of the master have {size} bytes, and ours at most {GIB}"
    elif segment_bytes is not None and size != segment_bytes:
        yield (
            f"the commit-log files of the master have {size} bytes, and those of this directory {segment_bytes}: "
            "follow into an empty directory"
        )


def _settings_left_behind(settings: dict[str, str]) -> Iterator[str]:
    if any(_is_on(settings, name) for name in ("aclEnable", "authenticationEnabled", "authorizationEnabled")):
        yield "accounts and access rules do not come along: issue tokens after the promotion (docs/tokens.md)"
    if _is_on(settings, "enableLmq"):
        yield "light queues (enableLmq) do not come along: their messages stay in their parent topics"
    levels = settings.get("messageDelayLevel", DELAY_LEVELS)
    if levels.split() != DELAY_LEVELS.split():
        yield f"the master has its own delay levels ({levels}): Sparrow delays by RocketMQ's default levels"
    if _is_on(settings, "popConsumerKVServiceEnable"):
        yield (
            "the master keeps pops in flight in RocksDB (popConsumerKVServiceEnable), where we cannot see them: let "
            "pop groups run empty before the promotion"
        )
    if _is_on(settings, "enablePopBufferMerge"):
        yield (
            "the master keeps young pops in memory (enablePopBufferMerge), where we cannot see them: let pop groups "
            "run empty before the promotion"
        )


def _metadata_left_behind(metadata: dict[str, bytes]) -> Iterator[str]:
    for name, topic in sorted(table_of(metadata, "topics.json", "topicConfigTable").items()):
        attributes: dict[str, Any] = (topic.get("attributes") if isinstance(topic, dict) else None) or {}
        kinds = {key.lstrip("+"): str(value) for key, value in attributes.items()}
        if kinds.get("queue.type") == "BatchCQ":
            yield f"topic {name} has batch queues (BatchCQ), which Sparrow does not read: consume it before"
        if kinds.get("cleanup.policy", "").upper() == "COMPACTION":
            yield f"topic {name} is compacted by the master: Sparrow keeps all its messages until they expire"
    if mapped := sorted(table_of(metadata, "topics.json", "topicQueueMappingDetailMap")):
        yield f"static topics do not come along as such: {', '.join(mapped)}"
    if forbidden := sorted(table_of(metadata, "subscriptionGroup.json", "forbiddenTable")):
        yield f"topics that groups are forbidden to read are not kept: {', '.join(forbidden)}"
