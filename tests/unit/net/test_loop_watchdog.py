"""Requests that hold the event loop are found, counted, and logged with their peer."""

import asyncio
import time

import pytest
from tests.support.raw_connection import open_raw_connection, running_listener
from tests.support.wait import eventually

from sparrow.net import RequestDispatcher
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import HandlerResponse, encode_response
from sparrow.net.loop_watchdog import LoopWatchdog
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand

INLINE, AWAITING, PATIENT = RequestCode.PULL_MESSAGE, RequestCode.HEART_BEAT, RequestCode.GET_MAX_OFFSET
HOLD_S = 0.02


@pytest.fixture(autouse=True)
def _no_findings_of_other_tests(monkeypatch):
    monkeypatch.setattr(LoopWatchdog, "_last_hold_s", 0.0)
    monkeypatch.setattr(LoopWatchdog, "_unexplained", type(LoopWatchdog._unexplained)())


class Clock:
    """A time that the test sets."""

    def __init__(self):
        self.now_s = 1000.0
        self.cpu_s = 5.0


def hold_loop():
    until = time.monotonic() + HOLD_S
    while time.monotonic() < until:
        pass


def inline(command, channel):
    hold_loop()
    return encode_response(command, HandlerResponse())


async def awaiting(request, context, call):
    await asyncio.sleep(0)
    hold_loop()


def holding_dispatcher():
    return RequestDispatcher(None, {AWAITING: awaiting}, {INLINE: inline})


def counts(listener):
    return {name: histogram.count for name, histogram in listener.watchdog.holds.items() if name != "none"}


@pytest.mark.parametrize("code", [INLINE, AWAITING])
async def test_a_request_that_holds_the_loop_is_counted_and_logged_once_with_its_peer(code, caplog):
    async with running_listener(holding_dispatcher(), loop_hold_ms=1) as server:
        async with open_raw_connection(server.address) as peer:
            for _ in range(3):
                assert (await peer.request(RemotingCommand(code))).code == 0
            (channel,) = server.channels
            held = server.listener.watchdog.holds[code.name.lower()]
            assert held.count >= 3
            assert held.sum >= 3 * HOLD_S
        said = [text for text in caplog.messages if f"{code.name} of {channel.address} held the event loop" in text]
    assert len(said) == 1, caplog.messages


async def test_requests_that_hold_the_loop_together_are_named_with_their_number(caplog):
    watchdog = LoopWatchdog(50)
    watchdog.note_read(Channel(), [INLINE, AWAITING, INLINE, INLINE], 0.2)
    assert "3 × PULL_MESSAGE, HEART_BEAT of unconnected held the event loop for 200 ms" in caplog.text
    assert set(watchdog.holds) == {"pull_message"}


async def test_the_time_that_a_handler_waits_does_not_count():
    clock = Clock()
    watchdog = LoopWatchdog(50, now_s=lambda: clock.now_s)

    async def handle():
        clock.now_s += 0.04
        await asyncio.sleep(0)
        clock.now_s += 0.06
        return "handled"

    work = watchdog.watch(handle(), PATIENT, Channel())
    work.send(None)
    clock.now_s += 100
    with pytest.raises(StopIteration, match="handled"):
        work.send(None)
    held = watchdog.holds["get_max_offset"]
    assert held.count == 1
    assert held.sum == pytest.approx(0.06)


async def test_the_end_of_a_connection_that_holds_the_loop_is_named(caplog):
    async with running_listener(holding_dispatcher(), loop_hold_ms=1) as server:
        server.listener._on_close = lambda channel: hold_loop()
        async with open_raw_connection(server.address) as peer:
            await peer.request(RemotingCommand(AWAITING))
        await eventually(lambda: "closed_connection" in counts(server.listener))
    assert "the end of the connection of 127.0.0.1" in caplog.text


async def test_a_late_loop_without_a_slow_request_is_reported_if_the_process_was_running(caplog):
    clock = Clock()
    watchdog = LoopWatchdog(50, now_s=lambda: clock.now_s, cpu_s=lambda: clock.cpu_s)
    watchdog.start()
    try:
        clock.now_s += 0.14
        watchdog.tick(1000.1)
        assert not watchdog.holds, "40 ms are below the limit"
        clock.now_s += 3
        watchdog.tick(1000.2)
        assert watchdog.holds["none"].count == 1
        assert not caplog.messages, "the process did not run: it used no CPU time"
        clock.now_s += 2
        clock.cpu_s += 1.9
        watchdog.tick(1003.3)
        clock.now_s += 2
        clock.cpu_s += 1.9
        watchdog.tick(1005.3)
    finally:
        watchdog.stop()
    assert watchdog.holds["none"].count == 3
    (said,) = caplog.messages
    assert "at most 1900 ms of it CPU time" in said


async def test_a_delay_that_a_request_explains_is_not_reported_twice():
    clock = Clock()
    watchdog = LoopWatchdog(50, now_s=lambda: clock.now_s, cpu_s=lambda: clock.cpu_s)
    watchdog.start()
    try:
        clock.now_s += 3
        watchdog.note_step(PATIENT, Channel(), 2.9)
        watchdog.tick(1000.1)
    finally:
        watchdog.stop()
    assert set(watchdog.holds) == {"get_max_offset"}
