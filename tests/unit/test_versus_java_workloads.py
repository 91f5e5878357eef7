"""Work loads of `make versus` against RocketMQ: they can be described, and left out, without servers or JVMs."""

from pathlib import Path

import pytest
from bench.versus.peers.rocketmq import RocketMQ
from bench.versus.peers.sparrow import Sparrow
from bench.versus.run import Run
from bench.versus.sections import java_workloads, rocketmq
from bench.versus.workload import FULL, SMOKE, Scale

NO_JVM = dict.fromkeys(java_workloads.HEADERS)
"""In place of the load generators: whatever uses one before a round fails."""
MAKERS = (*rocketmq.TOGETHER, *rocketmq.APART, java_workloads.sync_flush, java_workloads.quorum)


def names(scale: Scale, folder: Path, peers: list) -> list[str]:
    run = Run(scale, folder)
    made = [workload for make in MAKERS for workload in make(run, NO_JVM, peers)]
    kinds = [type(peer) for peer in peers]
    made += [java_workloads.footprints(run, None, kinds), java_workloads.separate_large_backlogs(run, None, kinds)]
    return [workload.name for workload in made]


@pytest.mark.parametrize("scale", [SMOKE, FULL])
def test_work_loads_have_different_names_and_do_nothing_before_they_are_measured(scale: Scale, tmp_path) -> None:
    found = names(scale, tmp_path, [Sparrow(), RocketMQ()])

    assert len(set(found)) == len(found)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "count"),
    [("64 KB, JSON", 1), ("1,000 topics", 1), ("fan-out", 1), ("maximum", 3), ("90 %", 1), ("10 GB", 1), ("quorum", 1)],
)
def test_a_text_selects_its_work_loads(text: str, count: int, tmp_path) -> None:
    assert sum(text in name for name in names(FULL, tmp_path, [Sparrow(), RocketMQ()])) == count


def test_servers_are_not_started_for_work_loads_that_are_not_wanted(tmp_path) -> None:
    class Unwanted(Sparrow):
        def start(self, folder: Path) -> None:
            raise AssertionError("started")

    run = Run(FULL, tmp_path, only="sync flush")

    rocketmq._measure(run, NO_JVM, [Unwanted()], *rocketmq.TOGETHER, *rocketmq.APART)
    assert not run.failures

    rocketmq._measure(run, NO_JVM, [Unwanted()], java_workloads.sync_flush)
    assert list(run.failures.values()) == ["started"]
