"""Consumer groups of Redis streams: creation, discovery of streams for wildcards, and leaving."""

from __future__ import annotations

import os
import platform
import re
import secrets
from collections.abc import Collection, Mapping, Sequence

from redis import exceptions as fails
from redis.asyncio import Redis

from sparrow.bus.names import matches
from sparrow.bus.transports.redis.trimming import WILDCARD_GROUPS_KEY, wildcard_field

RELEASED_IDLE_MS = 86_400_000
"""The idle time set on released entries: longer than any consumer waits."""
DEAD_MEMBER_IDLE_MS = 86_400_000
MEMBER_PREFIX = "sparrow-"

# Atomic, because deleting a consumer loses its pending entries: they go to the consumer that CAP's services use.
LEAVE_SCRIPT = """
local from = '-'
while true do
  local rows = redis.call('XPENDING', KEYS[1], ARGV[1], from, '+', 100, ARGV[2])
  if #rows == 0 then break end
  local claim = {'XCLAIM', KEYS[1], ARGV[1], ARGV[1], 0}
  for _, row in ipairs(rows) do claim[#claim + 1] = row[1] end
  for _, word in ipairs({'IDLE', ARGV[3], 'JUSTID'}) do claim[#claim + 1] = word end
  redis.call(unpack(claim))
  from = '(' .. rows[#rows][1]
end
return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
"""


def new_member_name() -> str:
    return f"{MEMBER_PREFIX}{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}"


async def create_group(client: Redis, stream: str, group: str, start: str) -> None:
    """Create a group that reads entries after `start`; an existing group keeps its position."""
    try:
        await client.xgroup_create(stream, group, start, mkstream=True)
    except fails.ResponseError as refusal:
        if "BUSYGROUP" not in str(refusal):
            raise


async def register_patterns(client: Redis, group: str, patterns: Sequence[str]) -> dict[str, str]:
    """Return the start position for each pattern: the time at which the group first used it."""
    seconds, microseconds = await client.time()
    now_ms = seconds * 1_000 + microseconds // 1_000
    starts = {}
    for pattern in patterns:
        field = wildcard_field(group, pattern)
        await client.hsetnx(WILDCARD_GROUPS_KEY, field, str(now_ms))
        since_ms = int(await client.hget(WILDCARD_GROUPS_KEY, field) or now_ms)
        # A group starts after the given entry: this is the last possible one of the millisecond before.
        starts[pattern] = f"{since_ms - 1}-{2**64 - 1}"
    return starts


async def discover_streams(
    client: Redis, group: str, starts: Mapping[str, str], *, known: Collection[str]
) -> list[str]:
    """Join the streams that match the patterns. Redis' own key patterns differ, so `matches` decides."""
    found: list[str] = []
    for pattern, start in starts.items():
        async for key in client.scan_iter(match=_glob(pattern), count=1_000, _type="STREAM"):
            stream = key.decode(errors="replace")
            if stream not in known and stream not in found and matches(pattern, stream):
                await create_group(client, stream, group, start)
                found.append(stream)
    return found


async def leave_group(client: Redis, stream: str, group: str, member: str) -> None:
    """Leave a group, and release pending entries to the other consumers at once."""
    await client.eval(LEAVE_SCRIPT, 1, stream, group, member, str(RELEASED_IDLE_MS))


async def forget_dead_members(client: Redis, stream: str, group: str) -> None:
    """Remove consumers that crashed long ago; Redis keeps them forever."""
    for member in await client.xinfo_consumers(stream, group):
        name = member["name"].decode(errors="replace")
        if name.startswith(MEMBER_PREFIX) and member["idle"] > DEAD_MEMBER_IDLE_MS:
            await leave_group(client, stream, group, name)


def _glob(pattern: str) -> str:
    """Return a Redis key pattern that matches at least the streams of an AMQP pattern; its `*` also spans dots."""
    words = re.split(r"[.]?#[.]?|[*]", pattern)
    return "*".join(re.sub(r"([\[\]?*\\])", r"\\\1", word) for word in words)
