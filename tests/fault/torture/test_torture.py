"""Brokers on every store under all loads, while everything that can fail does, and a checker that reads the history.

Nothing acknowledged is lost, nothing arrives before its time or its commit, and the order of every key is kept. The
short form (`make test`) lets every kind of fault happen at least once among 300 connections. The long form (`make
fault`) goes on for 30 minutes among 2,000. SPARROW_SEED repeats the random choices of a run, and SPARROW_TORTURE_S sets
the seconds of the long form. `build/torture-STORE.txt` has the report of the last run.
"""

from __future__ import annotations

import dataclasses
import os
import random
from pathlib import Path

import pytest
from tests.fault.torture.faults import Severity
from tests.fault.torture.file_damage import find_last_record
from tests.fault.torture.loads import TOPICS
from tests.fault.torture.report import RunReport, describe
from tests.fault.torture.run import SHORT, long_scale, torture
from tests.fault.torture.servers import Platform, StoreKind
from tests.support.databases import ServerNotInstalled
from tests.support.server_processes import ROOT

IS_SMOKE = os.environ.get("SPARROW_SCALE", "smoke") == "smoke"
LONG_S = float(os.environ.get("SPARROW_TORTURE_S") or 1_800)


@pytest.mark.timeout(600 if IS_SMOKE else LONG_S + 1_800)
@pytest.mark.parametrize("store", ["log", "sqlite", pytest.param("mariadb", marks=pytest.mark.thorough)])
async def test_no_fault_breaks_a_promise(store: StoreKind, tmp_path: Path) -> None:
    seed = int(os.environ.get("SPARROW_SEED") or random.SystemRandom().getrandbits(32))
    report = RunReport(ROOT / "build" / f"torture-{store}.txt")
    try:
        findings = await torture(store, tmp_path, SHORT if IS_SMOKE else long_scale(LONG_S), seed, report)
    except ServerNotInstalled as missing:
        pytest.skip(str(missing))
    assert not findings.violations, (seed, findings.violations[:10])
    assert findings.received.keys() == TOPICS.keys()


async def forget_the_end(platform: Platform, rng: random.Random, severity: Severity) -> str:
    """Overwrite the newest half of the records, which no store can survive."""
    (broker,) = platform.brokers
    await broker.kill()
    segment, _, end = find_last_record(broker.store)
    with segment.open("r+b") as file:
        file.seek(end // 2)
        file.write(bytes(end - end // 2))
    await broker.start()
    return "half of the log overwritten with zeros"


@pytest.mark.thorough
async def test_a_store_that_forgets_acknowledged_messages_is_found_out(tmp_path: Path) -> None:
    scale = dataclasses.replace(SHORT, duration_s=0, connections=50, settle_s=5)
    findings = await torture("log", tmp_path, scale, 1, RunReport(tmp_path / "report"), faults=[forget_the_end])
    kinds = {violation.kind for violation in findings.violations}
    assert {"lost", "place"} & kinds, describe(findings)
