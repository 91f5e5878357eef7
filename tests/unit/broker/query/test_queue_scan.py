"""Scans of many queues take turns."""

import asyncio

from sparrow.broker.query.queue_scan import QUEUES_A_TURN, QUEUES_AT_ONCE, QueueScan


async def scan_queues(turn: asyncio.Lock, count: int, name: str, ended: list[str]) -> None:
    async with QueueScan(turn) as scan:
        for _ in range(count):
            await scan.next_queue()
    ended.append(name)


async def test_others_have_a_turn_after_every_few_queues():
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await scan_queues(asyncio.Lock(), 10 * QUEUES_A_TURN, "wide", [])
    counting.cancel()
    assert turns >= 10


async def test_wide_scans_run_one_after_the_other_and_narrow_ones_do_not_wait():
    turn, ended = asyncio.Lock(), []
    async with asyncio.TaskGroup() as tasks:
        for name in ("first", "second", "third"):
            tasks.create_task(scan_queues(turn, 5 * QUEUES_A_TURN, name, ended))
        tasks.create_task(scan_queues(turn, QUEUES_AT_ONCE - 1, "narrow", ended))
    assert ended == ["narrow", "first", "second", "third"]
    assert not turn.locked()


async def test_a_scan_that_fails_gives_up_its_turn():
    turn = asyncio.Lock()
    scanning = asyncio.create_task(scan_queues(turn, 1_000 * QUEUES_A_TURN, "endless", []))
    while not turn.locked():
        await asyncio.sleep(0)
    scanning.cancel()
    await asyncio.wait([scanning])
    assert not turn.locked()
