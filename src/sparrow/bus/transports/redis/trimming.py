"""Trimming of Redis streams: Redis keeps every entry forever, and CAP never removes one.

1. Entries that any group of a stream has not read and acknowledged are kept. This includes groups that use a wildcard
   and have not discovered the stream yet; they are listed in `WILDCARD_GROUPS_KEY`.
2. A stream without any group is not trimmed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from redis.asyncio import Redis

from sparrow.bus.names import matches

WILDCARD_GROUPS_KEY = "sparrow:bus:wildcards"
"""A hash: `["group","pattern"]` → start time, in milliseconds of the server's clock."""


class TrimPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What is removed from a stream."""

    by_slowest_group: bool = True
    """Remove what every group has acknowledged. Readers without a group are ignored."""
    length_max: int | None = None
    """Keep about this many entries, read or not; None: no limit."""
    every: int = 1_000
    """Acknowledgements on a stream between two checks of its groups."""


TRIM_TO_SLOWEST_GROUP = TrimPolicy()


def wildcard_field(group: str, pattern: str) -> str:
    return msgspec.json.encode([group, pattern]).decode()


async def trim_to_slowest(client: Redis, stream: str, *, is_exact: bool = False) -> int:
    """Remove entries that all groups have acknowledged, and return how many.

    Not exact removes whole blocks of entries only, which is much cheaper for the server.
    """
    groups = await client.xinfo_groups(stream)
    # In this order: a group that registers after the groups were read starts later than anything removed now.
    missing = _expected_groups(stream, await client.hkeys(WILDCARD_GROUPS_KEY)) - {
        _text(group["name"]) for group in groups
    }
    if not groups or missing:
        return 0
    floors = [await _needs_from(client, stream, group) for group in groups]
    removed: int = await client.xtrim(stream, minid=_id_text(min(floors)), approximate=not is_exact)
    return removed


def _expected_groups(stream: str, fields: Iterable[bytes | str]) -> set[str]:
    wanted = (msgspec.json.decode(field, type=tuple[str, str]) for field in fields)
    return {group for group, pattern in wanted if matches(pattern, stream)}


async def _needs_from(client: Redis, stream: str, group: dict[str, Any]) -> tuple[int, int]:
    """Return the first entry that the group may still read."""
    if group["pending"]:
        pending = await client.xpending(stream, _text(group["name"]))
        if pending["min"] is not None:
            return _id(pending["min"])
    milliseconds, sequence = _id(group["last-delivered-id"])
    return (milliseconds, sequence + 1)


def _id(value: bytes | str) -> tuple[int, int]:
    milliseconds, sequence = _text(value).split("-")
    return int(milliseconds), int(sequence)


def _id_text(value: tuple[int, int]) -> str:
    return f"{value[0]}-{value[1]}"


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
