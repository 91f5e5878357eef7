"""Attackers with real sockets on live servers, beside an honest client that must lose nothing and hardly notice.

`make thorough` runs a short form, `make fault` the long one. Both write the figures to `build/hostile.json`. The goal
of a p99 below 50 ms is for a machine with nothing else to do, so no test asserts it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import pytest
import pytest_asyncio
from tests.hostile import console_attacks, floods, frame_attacks, request_attacks
from tests.hostile.report import AttackReport, Report
from tests.hostile.tally import Tally
from tests.hostile.target import Siege, Target, running_siege

pytestmark = [pytest.mark.thorough, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


class Attack(NamedTuple):
    """An attack, and how often it does what it does."""

    run: Callable[[Target, Tally, int], Awaitable[None]]
    smoke: int
    full: int
    rows: str = ""
    """The rows of the table of known weaknesses that it repeats."""

    @property
    def name(self) -> str:
        return self.run.__name__


ATTACKS = [
    Attack(frame_attacks.quiet, 0, 0),
    Attack(request_attacks.wide_heartbeats, 3, 50, "1"),
    Attack(request_attacks.unquoted_heartbeats, 1, 10, "2"),
    Attack(frame_attacks.giant_headers, 1, 10, "2"),
    Attack(request_attacks.wide_pops, 5, 30, "2"),
    Attack(request_attacks.heavy_filters, 10, 200, "2"),
    Attack(request_attacks.tiny_messages, 7, 200, "2"),
    Attack(request_attacks.mass_wake, 2_000, 200_000, "2, 6"),
    Attack(request_attacks.forged_registrations, 50, 5_000, "3"),
    Attack(frame_attacks.half_frames, 10, 80, "6"),
    Attack(frame_attacks.slow_writers, 20, 500, "6"),
    Attack(frame_attacks.slow_readers, 10, 100, "6"),
    Attack(request_attacks.long_poll_places, 2_000, 200_000, "6"),
    Attack(request_attacks.foreign_locks, 50, 2_000, "6"),
    # Before attacks that leave 50,000 groups behind: lists of all groups take long then.
    Attack(floods.broker_flood, 20, 2_000),
    Attack(floods.name_server_flood, 40, 2_000),
    Attack(request_attacks.foreign_offsets, 1_000, 100_000, "7"),
    Attack(request_attacks.new_topics, 100, 4_000, "8"),
    Attack(request_attacks.long_names, 10, 500, "11"),
    Attack(request_attacks.replies_to_nothing, 10, 500),
    Attack(frame_attacks.garbage, 20, 1_000),
    Attack(frame_attacks.connection_churn, 100, 5_000),
    Attack(frame_attacks.idle_connections, 300, 20_000, "13"),
    Attack(console_attacks.slow_http_requests, 50, 1_000),
    Attack(console_attacks.endless_http_bodies, 3, 20),
    Attack(console_attacks.http_flood, 20, 500),
]
HOLD_MESSAGES = {"smoke": 50, "full": 1_000}
GROWTH_MAX_MIB = {"smoke": 768, "full": 1_536}
"""The budget of incomplete frames and of unsent responses, and a wide margin."""
HONEST_MAX_MS = 110_000
"""Far above what a broker costs: a machine with ten times more work than CPUs delays everything by many seconds."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def siege(tmp_path_factory: pytest.TempPathFactory, scale_of_run: str) -> AsyncIterator[Siege]:
    async with running_siege(tmp_path_factory.mktemp("siege"), hold_messages=HOLD_MESSAGES[scale_of_run]) as siege:
        yield siege


@pytest.fixture(scope="module")
def report(scale_of_run: str):
    report = Report(scale_of_run)
    yield report
    print("", *report.lines(), sep="\n")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.name for attack in ATTACKS])
async def test_the_honest_client_loses_nothing_under(attack: Attack, siege: Siege, report: Report, scale_of_run: str):
    await siege.honest.report()  # what was sent before does not count
    tally, memory = Tally(), siege.memory()
    watching = asyncio.create_task(memory.watch())
    begun = time.monotonic()
    await attack.run(siege.target, tally, attack.full if scale_of_run == "full" else attack.smoke)
    honest = await siege.honest.report()
    watching.cancel()
    growth = {name: round(grown / (1 << 20), 1) for name, grown in memory.growth_bytes.items()}
    report.add(AttackReport(attack.name, attack.rows, round(time.monotonic() - begun, 1), tally, honest, growth))

    assert not siege.dead_servers()
    assert honest.acknowledged > 0
    assert honest.lost == 0
    assert tally.unanswered == 0, tally
    assert max(growth.values()) < GROWTH_MAX_MIB[scale_of_run]
    assert honest.max_ms < HONEST_MAX_MS
