"""Steps of a replica: one at a time, in order, at once where nothing blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sparrow.replication.core.output import Output
from sparrow.replication.step_queue import Effects, StepEvent, StepQueue


class Steps:
    """A queue whose steps are named, and block while `gate` is closed if their name says so."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.gate = asyncio.Event()
        self.queue = StepQueue(self._take)

    def step(self, name: str) -> StepEvent:
        def event(_: int) -> Output:
            return Output(notice=name)

        return event

    def _take(self, event: StepEvent, body: bytes | memoryview) -> Effects | None:
        name = event(0).notice or ""
        self.taken.append(name + bytes(body).decode())
        if name == "bad":
            raise OSError("the disk is gone")
        return self._block(name) if name.startswith("slow") else None

    async def _block(self, name: str) -> None:
        await self.gate.wait()
        self.taken.append(f"end of {name}")
        if name == "slow and bad":
            raise OSError("the disk is gone")


async def test_a_step_that_blocks_nothing_is_taken_at_once() -> None:
    steps = Steps()
    idle: list[int] = []
    steps.queue.on_idle = lambda: idle.append(len(steps.taken))
    steps.queue.submit(steps.step("a"), b" with bytes")
    assert steps.taken == ["a with bytes"]
    assert idle == [1]
    assert not steps.queue.is_running


@pytest.mark.parametrize("slow", ["slow", "slow and bad"])
async def test_later_events_wait_for_the_effects_of_a_step(slow: str) -> None:
    steps = Steps()
    steps.queue.submit(steps.step(slow))
    steps.queue.submit(steps.step("b"))
    last = asyncio.create_task(steps.queue.step(steps.step("c")))
    await asyncio.sleep(0)
    assert steps.taken == [slow]
    assert steps.queue.is_running
    steps.gate.set()
    await last
    assert steps.taken == [slow, f"end of {slow}", "b", "c"]


async def test_a_step_that_fails_does_not_end_the_others() -> None:
    steps = Steps()
    steps.queue.submit(steps.step("bad"))
    await steps.queue.step(steps.step("b"))
    assert steps.taken == ["bad", "b"]


async def test_an_event_inside_a_step_waits_for_its_end() -> None:
    order: list[str] = []

    def take(event: StepEvent, _: bytes | memoryview) -> Effects | None:
        event(0)
        order.append("end")
        return None

    queue = StepQueue(take)

    def noting(name: str, then: Callable[[], None] = lambda: None) -> StepEvent:
        def event(_: int) -> Output:
            order.append(name)
            then()
            return Output()

        return event

    queue.submit(noting("outer", lambda: queue.submit(noting("inner"))))
    assert order == ["outer", "end", "inner", "end"]


async def test_a_queue_that_is_held_takes_no_steps_until_it_is_released() -> None:
    steps = Steps()
    await steps.queue.hold()
    steps.taken.clear()
    steps.queue.submit(steps.step("a"))
    await asyncio.sleep(0)
    assert steps.taken == []
    steps.queue.release()
    assert steps.taken == ["a"]


async def test_a_queue_that_stops_keeps_nobody_waiting() -> None:
    steps = Steps()
    steps.queue.submit(steps.step("slow"))
    waiting = asyncio.create_task(steps.queue.step(steps.step("b")))
    await asyncio.sleep(0)
    steps.queue.stop()
    await asyncio.wait_for(waiting, 12)
    assert steps.taken == ["slow"]
