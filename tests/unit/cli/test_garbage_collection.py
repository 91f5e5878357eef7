"""Full collections of a server: rare, and rarer the longer they take."""

from __future__ import annotations

import asyncio
import gc

import pytest

from sparrow.cli import garbage_collection
from sparrow.cli.garbage_collection import PAUSE_S_MIN, PAUSES_A_COLLECTION, FullCollections, keep_collections_rare


class Clock:
    def __init__(self):
        self.now_s, self.collection_s, self.collections = 100.0, 0.001, 0

    def __call__(self):
        return self.now_s

    def collect(self):
        self.collections += 1
        self.now_s += self.collection_s


@pytest.mark.parametrize("collection_s", [0.001, 0.4])
def test_full_collections_take_a_small_part_of_the_time(collection_s):
    clock = Clock()
    clock.collection_s = collection_s
    collections, began_s = FullCollections(clock.collect, clock), clock.now_s
    for _ in range(3_000):
        clock.now_s += 1.0
        collections.look(1_000)
    passed_s = clock.now_s - began_s
    pause_s = max(PAUSE_S_MIN, PAUSES_A_COLLECTION * collection_s)
    assert clock.collections == pytest.approx(passed_s / pause_s, abs=2)
    assert clock.collections > 0


def test_an_idle_server_makes_no_full_collection():
    clock = Clock()
    collections = FullCollections(clock.collect, clock)
    clock.now_s += 10_000
    assert not collections.look(9)
    assert collections.look(10)


async def test_python_makes_none_of_its_own_meanwhile(monkeypatch):
    frozen = []
    monkeypatch.setattr(garbage_collection, "START_S", 0.0)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    before = gc.get_threshold()
    task = asyncio.create_task(keep_collections_rare())
    await asyncio.sleep(0.01)
    assert frozen == [True]
    assert gc.get_threshold()[2] > 1_000_000
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert gc.get_threshold() == before
