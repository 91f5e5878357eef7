"""The address of a replica that runs, in the coordinator: operators find it there, and a second process of it.

1. One process at a time is announced as a replica. A process is announced before it takes part in anything.
2. A second process takes the place of one that is gone, but not of one that answers, or that may only be slow: it
   waits until that is forgotten.
3. A process that finds another one in its place stops to take part.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from sparrow.model.errors import Refused, SparrowError
from sparrow.replication.coordinator import Coordinator

log = logging.getLogger(__name__)

_PAUSE_S = 0.2
_ASK_AGAIN_S = 1.0


async def announce_alone(coordinator: Coordinator, is_gone: Callable[[str], Awaitable[bool]]) -> None:
    """Announce this process as its replica. `is_gone` returns whether no process at an address can be that replica.

    It raises `Refused` itself if one is.
    """
    replacing = ""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + 2 * coordinator.announced_s
    while (holder := await coordinator.announce(replacing=replacing)) is not None:
        if await is_gone(holder):
            replacing = holder
            continue
        if loop.time() > until_s:
            raise Refused(f"this replica was announced at {holder}, where something runs that does not answer: stop it")
        log.warning(
            "this replica was announced at %(address)s, where nothing answers: waiting until that is forgotten",
            {"address": holder},
        )
        await asyncio.sleep(_ASK_AGAIN_S)


async def keep_announced(
    coordinator: Coordinator, report: Callable[[str, str], None], replaced: Callable[[str], None]
) -> None:
    """Announce the address until this is cancelled; then withdraw it.

    `report` takes a cause and a text; `replaced` takes the address of a process that has taken this one's place.
    """
    was_announced = False
    try:
        while True:
            try:
                holder = await coordinator.announce()
                if holder is not None and was_announced:
                    replaced(holder)
                    return
                was_announced = holder is None
                await asyncio.sleep(coordinator.announced_s / 3)
            except SparrowError as error:
                report("announcement", f"the address of this replica was not announced: {error}")
                await asyncio.sleep(_PAUSE_S)
    finally:
        try:
            await coordinator.withdraw()
        except SparrowError as error:
            log.info("the address of this replica is forgotten later: %(error)s", {"error": error})
