"""The faults of a torture run. Each lasts for a while and is over when its function returns, which says what it did.

Faults may overlap. Those that stop a process, or set its clock, hold the broker's `turn`.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.fault.torture import file_damage
from tests.fault.torture.fault_proxy import FaultProxy
from tests.fault.torture.servers import Platform, TorturedBroker
from tests.support.wait import eventually


@dataclass(frozen=True)
class Severity:
    """How long faults last."""

    seconds_max: float
    clock_jump_ms_max: int
    """Delayed and popped messages wait for so long after a clock that was ahead is set back."""


_SILENCE_S = 0.5
"""So long without an acknowledgement, sends are refused: a healthy broker has some in any tenth of it."""
_REFUSAL_S = 20.0
FaultFunction = Callable[[Platform, random.Random, Severity], Awaitable[str]]


async def _sleep_some_time(rng: random.Random, severity: Severity) -> float:
    """Let a fault go on for a random time; return the seconds."""
    seconds = rng.uniform(0.1, severity.seconds_max)
    await asyncio.sleep(seconds)
    return seconds


def _choose(platform: Platform, rng: random.Random) -> TorturedBroker:
    return rng.choice(platform.brokers)


# -- processes --------------------------------------------------------------------------------------------------------


async def kill(platform: Platform, rng: random.Random, severity: Severity) -> str:
    broker = _choose(platform, rng)
    async with broker.turn:
        await broker.kill()
        down_s = await _sleep_some_time(rng, severity) if rng.random() < 0.5 else 0.0
        await broker.start_again()
    return f"{broker.title} killed, started after {down_s:.1f} s"


async def kill_twice(platform: Platform, rng: random.Random, severity: Severity) -> str:
    """Kill a broker again while it starts."""
    broker = _choose(platform, rng)
    async with broker.turn:
        await broker.kill()
        starting = asyncio.create_task(broker.start())
        await eventually(lambda: broker.exit_code is None)  # the new process exists
        await asyncio.wait([starting], timeout=rng.uniform(0, 1.2))
        await broker.kill()
        await asyncio.gather(starting, return_exceptions=True)
        await broker.start_again()
    return f"{broker.title} killed, and again {'after' if starting.exception() is None else 'during'} its start"


async def restart(platform: Platform, rng: random.Random, severity: Severity) -> str:
    broker = _choose(platform, rng)
    async with broker.turn:
        begun_s = time.monotonic()
        await broker.end()
        ended_s, code = time.monotonic(), broker.exit_code
        await broker.start_again()
    return (
        f"{broker.title} shut down in {ended_s - begun_s:.1f} s (exit code {code}),"
        f" started in {time.monotonic() - ended_s:.1f} s"
    )


async def pause(platform: Platform, rng: random.Random, severity: Severity) -> str:
    broker = _choose(platform, rng)
    async with broker.turn:
        broker.signal(signal.SIGSTOP)
        try:
            seconds = await _sleep_some_time(rng, severity)
        finally:
            broker.signal(signal.SIGCONT)
    return f"{broker.title} stopped for {seconds:.1f} s"


async def kill_name_server(platform: Platform, rng: random.Random, severity: Severity) -> str:
    await platform.name_server.kill()
    seconds = await _sleep_some_time(rng, severity)
    await platform.name_server.start()
    return f"name server down for {seconds:.1f} s"


# -- connections ------------------------------------------------------------------------------------------------------


async def cut(platform: Platform, rng: random.Random, severity: Severity) -> str:
    broker, share = _choose(platform, rng), rng.choice((0.2, 1.0))
    return f"{broker.proxy.cut(share)} connections of {broker.title} cut"


async def tear(platform: Platform, rng: random.Random, severity: Severity) -> str:
    broker = _choose(platform, rng)
    broker.proxy.tears = True
    try:
        seconds = await _sleep_some_time(rng, severity)
    finally:
        broker.proxy.tears = False
    return f"connections of {broker.title} ended inside frames for {seconds:.1f} s"


async def delay(platform: Platform, rng: random.Random, severity: Severity) -> str:
    broker = _choose(platform, rng)
    broker.proxy.delay_s = delay_s = rng.uniform(0.01, 0.5)
    try:
        seconds = await _sleep_some_time(rng, severity)
    finally:
        broker.proxy.delay_s = 0.0
    return f"traffic of {broker.title} delayed by {1000 * delay_s:.0f} ms for {seconds:.1f} s"


async def hold(platform: Platform, rng: random.Random, severity: Severity) -> str:
    broker = _choose(platform, rng)
    return await _hold(broker.proxy, rng, severity, f"traffic of {broker.title}")


async def _hold(proxy: FaultProxy, rng: random.Random, severity: Severity, what: str) -> str:
    """Hold all traffic; then let it pass, or lose it."""
    proxy.hold()
    try:
        seconds = await _sleep_some_time(rng, severity)
        is_lost = rng.random() < 0.3
        if is_lost:
            proxy.cut(1.0)
    finally:
        proxy.release()
    return f"{what} held for {seconds:.1f} s{', then lost' if is_lost else ''}"


async def lose_answers(platform: Platform, rng: random.Random, severity: Severity) -> str:
    broker = _choose(platform, rng)
    broker.proxy.loses_answers = True
    try:
        seconds = await _sleep_some_time(rng, severity)
    finally:
        count = broker.proxy.cut(1.0)
        broker.proxy.loses_answers = False
    return f"answers of {broker.title} lost for {seconds:.1f} s, then its {count} connections cut"


# -- disks, clocks, files ---------------------------------------------------------------------------------------------


async def fill_disk(platform: Platform, rng: random.Random, severity: Severity) -> str:
    """Fill the disk until sends are refused; half of the time, kill the broker and let it start on the full disk."""
    assert platform.disk is not None
    broker = _choose(platform, rng)
    async with broker.turn:
        used = await asyncio.to_thread(platform.disk.fill)
        end, is_down = "", False
        try:
            refused_s = await _wait_for_silence(platform)
            seconds = refused_s + await _sleep_some_time(rng, severity)
            if rng.random() < 0.5:
                await broker.kill()
                end = ", broker killed and started meanwhile"
                try:
                    await broker.start()
                except AssertionError:  # it has closed its output, and ends: its exit code may not be known yet
                    end, is_down = ", broker killed meanwhile, and not started before there was space", True
        finally:
            await asyncio.to_thread(platform.disk.free)
        if is_down or broker.exit_code is not None:
            await broker.start_again()
    return f"disk full at {used >> 20} MiB for {seconds:.1f} s, sends refused after {refused_s:.1f} s{end}"


async def _wait_for_silence(platform: Platform) -> float:
    """Wait until no send is acknowledged any more; return how long some were."""
    begun_s = changed_s = time.monotonic()
    count = platform.history.acknowledged.total()
    while time.monotonic() - changed_s < _SILENCE_S:
        await asyncio.sleep(0.02)
        if platform.history.acknowledged.total() != count:
            count, changed_s = platform.history.acknowledged.total(), time.monotonic()
        assert changed_s - begun_s < _REFUSAL_S, f"sends are still acknowledged {_REFUSAL_S} s after the disk was full"
    return changed_s - begun_s


async def jump_clock(platform: Platform, rng: random.Random, severity: Severity) -> str:
    """Set a clock forward or back, and right again; half of the time, kill the broker in between."""
    broker = _choose(platform, rng)
    offset_ms = rng.choice((-1, 1)) * rng.randrange(500, severity.clock_jump_ms_max)
    async with broker.turn:
        platform.set_clock(broker, offset_ms)
        end = ""
        try:
            seconds = await _sleep_some_time(rng, severity)
            if rng.random() < 0.5:
                await broker.kill()
                if is_right := rng.random() < 0.5:
                    platform.set_clock(broker, 0)
                end = f", killed {'before' if is_right else 'while'} it was set right"
                await broker.start_again()
        finally:
            platform.set_clock(broker, 0)
    return f"clock of {broker.title} off by {offset_ms / 1000:+.1f} s for {seconds:.1f} s{end}"


async def damage_files(platform: Platform, rng: random.Random, severity: Severity) -> str:
    (broker,) = platform.brokers
    async with broker.turn:
        await broker.kill()
        if platform.store == "log":
            damage = await asyncio.to_thread(file_damage.damage_log_store, broker.store, rng)
        else:
            damage = await asyncio.to_thread(file_damage.damage_sqlite, platform.folder / "sparrow.db", rng)
        await broker.start_again()
    return f"{broker.title} killed, {damage}"


# -- the database -----------------------------------------------------------------------------------------------------


async def kill_database(platform: Platform, rng: random.Random, severity: Severity) -> str:
    assert platform.database is not None
    await asyncio.to_thread(platform.database.kill)
    seconds = await _sleep_some_time(rng, severity)
    await asyncio.to_thread(platform.database.start)
    return f"database killed, started after {seconds:.1f} s"


async def cut_database(platform: Platform, rng: random.Random, severity: Severity) -> str:
    assert platform.database_proxy is not None
    return f"{platform.database_proxy.cut(1.0)} connections to the database cut"


async def hold_database(platform: Platform, rng: random.Random, severity: Severity) -> str:
    assert platform.database_proxy is not None
    return await _hold(platform.database_proxy, rng, severity, "traffic to the database")


async def lose_database_answers(platform: Platform, rng: random.Random, severity: Severity) -> str:
    assert platform.database_proxy is not None
    platform.database_proxy.loses_answers = True
    try:
        seconds = await _sleep_some_time(rng, severity)
    finally:
        platform.database_proxy.cut(1.0)
        platform.database_proxy.loses_answers = False
    return f"answers of the database lost for {seconds:.1f} s, then its connections cut"


_EVERYWHERE: tuple[FaultFunction, ...] = (
    *(kill, kill_twice, restart, pause, kill_name_server),
    *(cut, tear, delay, hold, lose_answers, jump_clock),
)


def faults_of(platform: Platform) -> list[FaultFunction]:
    """Return the faults that the platform can have."""
    if platform.store == "mariadb":
        return [*_EVERYWHERE, kill_database, cut_database, hold_database, lose_database_answers]
    return [*_EVERYWHERE, damage_files, *([fill_disk] if platform.disk is not None else [])]
