"""Groups of a Redis stream: how they begin, how a wildcard finds its streams, and how a member leaves."""

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
"""The idle time written on entries that anybody may take: more than any member waits for."""
DEAD_MEMBER_IDLE_MS = 86_400_000
MEMBER_PREFIX = "sparrow-"

# One step, because what a member holds vanishes with it. It goes to the name under which all of CAP's services read.
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
    """The group reads what comes behind `start`; if it is there already, it goes on where it is."""
    try:
        await client.xgroup_create(stream, group, start, mkstream=True)
    except fails.ResponseError as refusal:
        if "BUSYGROUP" not in str(refusal):
            raise


async def register_patterns(client: Redis, group: str, patterns: Sequence[str]) -> dict[str, str]:
    """Where the group starts in the streams of each pattern: at the moment it first had the pattern."""
    seconds, microseconds = await client.time()
    now_ms = seconds * 1_000 + microseconds // 1_000
    starts = {}
    for pattern in patterns:
        field = wildcard_field(group, pattern)
        await client.hsetnx(WILDCARD_GROUPS_KEY, field, str(now_ms))
        since_ms = int(await client.hget(WILDCARD_GROUPS_KEY, field) or now_ms)
        # A group starts behind the entry it names. This is the last one that the millisecond before could have.
        starts[pattern] = f"{since_ms - 1}-{2**64 - 1}"
    return starts


async def discover_streams(
    client: Redis, group: str, starts: Mapping[str, str], *, known: Collection[str]
) -> list[str]:
    """Join the streams that the patterns mean. Redis matches keys by another rule, so ours decides."""
    found: list[str] = []
    for pattern, start in starts.items():
        async for key in client.scan_iter(match=_glob(pattern), count=1_000, _type="STREAM"):
            stream = key.decode(errors="replace")
            if stream not in known and stream not in found and matches(pattern, stream):
                await create_group(client, stream, group, start)
                found.append(stream)
    return found


async def leave_group(client: Redis, stream: str, group: str, member: str) -> None:
    """What the member still holds is free at once for the others."""
    await client.eval(LEAVE_SCRIPT, 1, stream, group, member, str(RELEASED_IDLE_MS))


async def forget_dead_members(client: Redis, stream: str, group: str) -> None:
    """Members that were killed leave their names behind; Redis keeps them for ever."""
    for member in await client.xinfo_consumers(stream, group):
        name = member["name"].decode(errors="replace")
        if name.startswith(MEMBER_PREFIX) and member["idle"] > DEAD_MEMBER_IDLE_MS:
            await leave_group(client, stream, group, name)


def _glob(pattern: str) -> str:
    """At least what the pattern means: Redis' `*` stands for any text, also across dots."""
    words = re.split(r"[.]?#[.]?|[*]", pattern)
    return "*".join(re.sub(r"([\[\]?*\\])", r"\\\1", word) for word in words)
