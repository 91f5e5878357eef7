"""One torture run: loads on a platform, faults one after the other or two at once, and in the end what was promised."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fault.torture.checker import Findings, check
from tests.fault.torture.faults import FaultFunction, Severity, faults_of
from tests.fault.torture.history import Connections, Fault, HistoryFile, now_ms, read_history
from tests.fault.torture.idle_connections import IdleConnections
from tests.fault.torture.loads import LOADS, TOPICS, Load
from tests.fault.torture.report import RunReport, describe
from tests.fault.torture.servers import Platform, StoreKind, running_platform
from tests.support.wait import eventually

RECOVERY_S = 120.0
"""After a fault, every load must be acknowledged again within this time."""
SETTLE_S = 180.0
"""More than the 60 s that the lock of a queue lasts."""


@dataclass(frozen=True)
class Scale:
    """The size of a run."""

    duration_s: float
    """How long new faults begin; every kind happens at least once, however long that takes."""
    connections: int
    """The fewest connections at the start."""
    producers: int
    """Of each load."""
    pause_s: float
    """The mean pause of a producer between two sends."""
    stay_s: float
    """The mean time after which a push consumer leaves, and another one joins its group."""
    quiet_s: float
    """The longest pause between two faults."""
    overlap: float
    """How often two faults happen at once."""
    severity: Severity
    settle_s: float = SETTLE_S
    """In the end, everything must arrive within this time."""


SHORT = Scale(
    duration_s=12,
    connections=300,
    producers=4,
    pause_s=0.1,
    stay_s=3_600,  # nobody leaves: one that leaves during an outage keeps the locks of its queues for a minute
    quiet_s=0.2,
    overlap=1,
    severity=Severity(seconds_max=1, clock_jump_ms_max=3_000),
)


def long_scale(duration_s: float) -> Scale:
    return Scale(
        duration_s=duration_s,
        connections=2_000,
        producers=20,
        pause_s=0.2,
        stay_s=20,
        quiet_s=3,
        overlap=0.3,
        severity=Severity(seconds_max=6, clock_jump_ms_max=30_000),
    )


class TortureRun:
    """Loads and faults on one platform."""

    def __init__(
        self,
        platform: Platform,
        history: HistoryFile,
        scale: Scale,
        rng: random.Random,
        faults: list[FaultFunction],
        report: RunReport,
    ) -> None:
        self._platform, self._history, self._scale, self._faults = platform, history, scale, faults
        self._report = report
        self._rng = random.Random(rng.random())
        self._loads: list[Load] = [
            load(
                platform.name_servers,
                history,
                random.Random(rng.random()),
                producers=scale.producers,
                pause_s=scale.pause_s,
                stay_s=scale.stay_s,
            )
            for load in LOADS
        ]
        self._idle = IdleConnections(platform, random.Random(rng.random()))
        self._begun_s = time.monotonic()

    async def run(self) -> None:
        platform = self._platform
        await platform.create_topics(TOPICS)
        try:
            for load in self._loads:
                await load.start()
            await self._go_on()
            self._idle.start(self._scale.connections - platform.connections)
            await eventually(lambda: platform.connections >= self._scale.connections, within_s=RECOVERY_S)
            for kinds in self._plan():
                await self._hit(kinds)
                await asyncio.sleep(self._rng.uniform(0, self._scale.quiet_s))
            for load in self._loads:
                await load.stop_sending()
            await self._settle()
        finally:
            await self._idle.close()
            await asyncio.gather(*(load.close() for load in self._loads), return_exceptions=True)

    def _plan(self) -> Iterator[list[FaultFunction]]:
        """Yield the faults of each step: all kinds in a random order, again and again until the time is over."""
        is_first, begun_s = True, time.monotonic()
        while is_first or time.monotonic() - begun_s < self._scale.duration_s:
            deck = self._rng.sample(self._faults, len(self._faults))
            while deck and (is_first or time.monotonic() - begun_s < self._scale.duration_s):
                step = [deck.pop()]
                if deck and self._rng.random() < self._scale.overlap:
                    step.append(deck.pop())
                yield step
            is_first = False

    async def _hit(self, kinds: list[FaultFunction]) -> None:
        """Let faults happen at the same time, and wait until all loads go on."""
        self._history.write(Connections(now_ms(), self._platform.connections))
        begun_ms = now_ms()

        details = await asyncio.gather(*(kind(self._platform, self._rng, self._scale.severity) for kind in kinds))
        ended_ms = now_ms()
        try:
            await self._go_on()
        except AssertionError as error:
            error.add_note(f"after {details}")
            raise
        recovered_ms = now_ms()
        for kind, detail in zip(kinds, details, strict=True):
            self._history.write(Fault(kind.__name__, begun_ms, ended_ms, recovered_ms, detail))
            self._report.add(
                f"{time.monotonic() - self._begun_s:7.1f} s  {kind.__name__}: {detail};"
                f" all loads went on {(recovered_ms - ended_ms) / 1000:.1f} s later"
            )

    async def _go_on(self) -> None:
        """Wait until every load has been acknowledged some more."""
        told = self._history.acknowledged
        targets = {load.topic: told[load.topic] + 2 for load in self._loads}

        def missing() -> list[str]:
            for load in self._loads:
                load.assert_alive()
            return [topic for topic, target in targets.items() if told[topic] < target]

        try:
            await eventually(lambda: not missing(), within_s=RECOVERY_S)
        except AssertionError as error:
            error.add_note(f"loads that do not go on: {missing()}")
            raise

    async def _settle(self) -> None:
        """Wait until everything that was promised has arrived. What has not is for the checker to say."""
        try:
            await eventually(lambda: not self._history.owed, within_s=self._scale.settle_s)
        except AssertionError:
            self._report.add(f"{len(self._history.owed)} messages are owed after {self._scale.settle_s:.0f} s")


async def torture(
    store: StoreKind,
    folder: Path,
    scale: Scale,
    seed: int,
    report: RunReport,
    *,
    faults: list[FaultFunction] | None = None,
) -> Findings:
    """Run all loads and these faults, or all; return what the checker finds in their history."""
    rng = random.Random(seed)
    report.add(f"{store} store, SPARROW_SEED={seed}")
    history = HistoryFile(folder / "history.jsonl")
    async with running_platform(store, folder, history, rng) as platform:
        findings = None
        try:
            await TortureRun(platform, history, scale, rng, faults or faults_of(platform), report).run()
            history.close()
            findings = check(read_history(history.path))
        finally:
            history.close()
            if findings is None or findings.violations:  # its disk is about to go
                await asyncio.to_thread(shutil.copytree, platform.folder, folder / "kept")
    report.add(describe(findings))
    return findings
