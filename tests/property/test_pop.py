"""Pop state against a model: after any operations and any stop, every unacknowledged message is still in flight."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.log_stores import copy_as_crashed, small_settings

from sparrow.broker.catalog.topics import TopicCatalog
from sparrow.broker.pop.state import log as pops_module
from sparrow.broker.pop.state.in_flight import InFlightBatch, InFlightTable
from sparrow.broker.pop.state.journal import pack_mask, unpack_mask
from sparrow.broker.pop.state.log import LogPopState
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.settings import BrokerSettings
from sparrow.store.log import LogStore

QUEUES = (Queue("T", 0), Queue("T", 1))


@given(st.integers(min_value=0, max_value=1 << 900))
def test_a_mask_round_trips_through_its_packed_form(mask):
    assert unpack_mask(pack_mask(mask)) == mask


steps = st.lists(
    st.tuples(
        st.sampled_from(["take", "settle", "due", "postpone", "pass"]),
        st.integers(0, 40),
        st.integers(1, (1 << 12) - 1),
    ),
    max_size=60,
)


@given(steps)
def test_exactly_the_messages_whose_invisible_time_is_over_are_due(steps):
    flying, now, number = InFlightTable(), 0, 0
    model: dict[tuple[int, int], int] = {}  # (batch, offset) to the end of its invisible time
    lots: dict[int, InFlightBatch] = {}
    for verb, pick, mask in steps:
        alive = sorted({of for of, _ in model})
        if verb == "take":
            lot = InFlightBatch("g", QUEUES[0], number * 100, pop_ms=now, invisible_ms=pick, mask=mask, number=number)
            lots[number] = lot
            model |= {(number, offset): now + pick for offset in lot.offsets()}
            flying.add(lot)
            number += 1
        elif verb == "settle" and alive:
            of = alive[pick % len(alive)]
            flying.settle(lots[of], mask)
            model = {key: due for key, due in model.items() if key[0] != of or not mask >> (key[1] - of * 100) & 1}
        elif verb in ("due", "postpone"):
            expected = {key for key, due in model.items() if due <= now}
            found = flying.due(now, 1000)
            assert {(lot.number, offset) for lot in found for offset in lot.offsets()} == expected
            for lot in found:
                if verb == "due":
                    flying.settle(lot, lot.mask)
                    model = {key: due for key, due in model.items() if key[0] != lot.number}
                else:
                    flying.postpone(lot, now + pick)
                    model = {key: now + pick if key[0] == lot.number else due for key, due in model.items()}
        else:
            now += pick
        assert len(flying) == len({of for of, _ in model})
        assert flying.oldest() == min((of for of, _ in model), default=None)
    assert {(lot.number, offset) for lot in flying.due(1 << 60, 1000) for offset in lot.offsets()} == model.keys()


acts = st.lists(
    st.tuples(
        st.sampled_from(["take", "settle", "settle", "move", "order", "order ack", "save", "turn"]),
        st.integers(0, 30),
        st.integers(1, 255),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(acts, st.booleans())
def test_a_restart_restores_the_messages_in_flight(acts, is_killed):
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_play(Path(folder), acts, is_killed=is_killed))


async def _pops(store: LogStore, now: list[int]) -> LogPopState:
    topics = TopicCatalog(store, BrokerSettings(cluster="C"), lambda: now[0])
    await topics.load()
    await topics.put(Topic(name="T"))
    pops = LogPopState(store, topics, cluster="C", now_ms=lambda: now[0])
    await pops.load()
    return pops


async def _play(folder: Path, acts: list[tuple[str, int, int]], *, is_killed: bool) -> None:
    now = [1_000_000]
    log = small_settings(segment_bytes=1 << 16)
    store = LogStore(folder / "one", log)
    pops = await _pops(store, now)
    next_offset = 0
    roll_after, pops_module.ROLL_AFTER_RECORDS = pops_module.ROLL_AFTER_RECORDS, 5
    try:
        for verb, pick, mask in acts:
            now[0] += pick
            lots = list(pops.in_flight)
            runs = list(pops.fifo)
            if verb == "take":
                lot = InFlightBatch("g", QUEUES[pick % 2], next_offset, pop_ms=now[0], invisible_ms=pick, mask=mask)
                next_offset += 8
                pops.add([lot])
            elif verb == "settle" and lots:
                pops.settle(lots[pick % len(lots)], mask)
            elif verb == "move" and lots:
                lot = lots[pick % len(lots)]
                pops.change_invisible_time(lot, lot.offsets()[0], mask)
            elif verb == "order":
                offsets = range(next_offset, next_offset + 3)
                run = pops.fifo.take(
                    "h",
                    QUEUES[pick % 2],
                    offsets,
                    next_offset=offsets[-1] + 1,
                    pop_ms=now[0],
                    invisible_ms=9,
                    attempt="a",
                )
                pops.fifo_changed(run)
            elif verb == "order ack" and runs:
                run = runs[pick % len(runs)]
                pops.fifo.ack(run, next(iter(run.dues)))
                pops.fifo_changed(run)
            elif verb == "save":
                pops.save()
            else:
                await asyncio.sleep(0)
        await asyncio.sleep(0)  # the loop iteration ends and its changes are written
        path = copy_as_crashed(store, folder / "two") if is_killed else store.path
        expected = _view(pops)
    finally:
        pops_module.ROLL_AFTER_RECORDS = roll_after
        store.close_blocking()
    with LogStore(path, log) as again:
        assert _view(await _pops(again, now)) == expected


def _view(pops: LogPopState) -> object:
    lots = {(lot.key, lot.mask, lot.due_ms) for lot in pops.in_flight}
    runs = {(run.queue, run.pop_ms, run.next_offset, *run.dues.items(), *run.counts.items()) for run in pops.fifo}
    return lots, runs
