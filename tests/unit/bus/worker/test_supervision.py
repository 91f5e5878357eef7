"""Supervised tasks of the bus: they restart after a failure, and end when they are stopped."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.wait import eventually

from sparrow.bus.worker import supervision
from sparrow.bus.worker.supervision import SupervisedTask


async def test_failed_work_restarts_until_it_returns():
    tries: list[int] = []

    async def work() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError(len(tries))

    running = SupervisedTask("work", work)
    await eventually(lambda: len(tries) == 3)
    await running.stop()
    assert isinstance(running.problem, ValueError)


async def test_problem_lasts_until_restarted_work_says_that_it_works():
    works, is_broken, failures = asyncio.Event(), True, list[None]()

    async def work() -> None:
        if is_broken:
            raise OSError("no route to host")
        works.set()
        await asyncio.sleep(60)

    running = SupervisedTask("work", work, is_settled=works.is_set, on_failure=lambda: failures.append(None))
    await eventually(lambda: len(failures) == 2)
    since = running.failing_since
    assert str(running.problem) == "no route to host"
    is_broken = False
    await eventually(lambda: running.problem is None)
    assert works.is_set()
    assert running.failing_since == since, "the second failure did not begin another problem"
    await running.stop()


async def test_work_that_swallows_a_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervision, "_SAY_AGAIN_S", 0.01)
    lost: list[int] = []

    async def work() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:  # as `wait_for` does when the result arrives at the same time
                if lost:
                    raise
                lost.append(1)

    running = SupervisedTask("work", work)
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await running.stop()
    assert lost


async def test_a_cancelled_stop_raises_cancelled_error():
    is_free = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await is_free.wait()

    running = SupervisedTask("work", work)
    await asyncio.sleep(0)
    stopping = asyncio.create_task(running.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    is_free.set()
    await running.stop()
