"""Turns of connections whose requests wait: equal shares of addresses, in short steps."""

from __future__ import annotations

import asyncio
import time

from tests.support.raw_connection import open_raw_connection, running_listener
from tests.support.wait import eventually

from sparrow.net.limits.turn_queue import TurnQueue
from sparrow.wire.frame import RemotingCommand, encode, response_to

ECHO, HEAVY = 7001, 7002


class Clock:
    """A clock that only work advances."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


class Taker:
    """A connection with a number of requests that wait."""

    def __init__(self, host, requests, request_s, turns, clock, served):
        self.host, self._left, self._request_s = host, requests, request_s
        self._turns, self._clock, self._served = turns, clock, served

    def take_turn(self):
        self._clock.now_s += self._request_s
        self._served.append(self.host)
        self._left -= 1
        if self._left:
            self._turns.wait(self)


async def all_served(turns):
    """Return how many iterations it took until nothing waits."""
    iterations = 0
    while turns._waiting:
        await asyncio.sleep(0)
        iterations += 1
    return iterations


async def test_an_address_with_one_connection_gets_as_much_time_as_one_with_many():
    clock = Clock()
    turns, served = TurnQueue(clock), []
    for _ in range(100):
        turns.wait(Taker("greedy", 10, 0.002, turns, clock, served))
    turns.wait(Taker("modest", 20, 0.002, turns, clock, served))
    await all_served(turns)
    assert len(served) == 1_020
    last = len(served) - 1 - served[::-1].index("modest")
    assert last <= 41, "both had the same share until the modest one was done"


async def test_an_address_that_comes_later_does_not_make_up_for_time_before():
    clock = Clock()
    turns, served = TurnQueue(clock), []
    turns.wait(Taker("first", 200, 0.002, turns, clock, served))
    while len(served) < 100:
        await asyncio.sleep(0)
    turns.wait(Taker("second", 100, 0.002, turns, clock, served))
    await all_served(turns)
    while_both = served[100:140]
    assert 15 <= while_both.count("second") <= 25


async def test_an_iteration_of_the_loop_is_held_for_a_few_milliseconds():
    clock = Clock()
    turns, served = TurnQueue(clock), []
    for _ in range(50):
        turns.wait(Taker("a", 2, 0.001, turns, clock, served))
    iterations = await all_served(turns)
    assert len(served) == 100
    assert 15 <= iterations <= 25, "5 or 6 requests of a millisecond each"
    assert not turns._served_s, "nothing is kept of addresses that wait no more"


async def test_a_turn_that_fails_does_not_end_those_of_others():
    clock = Clock()
    turns, served = TurnQueue(clock), []

    class Failing:
        host = "broken"

        def take_turn(self):
            raise RuntimeError("a bug")

    turns.wait(Failing())
    turns.wait(Taker("a", 3, 0.006, turns, clock, served))
    await all_served(turns)
    assert served == ["a"] * 3
    turns.wait(Taker("b", 1, 0.006, turns, clock, served))
    await all_served(turns)
    assert served[-1] == "b"


async def test_many_connections_with_heavy_requests_hold_up_others_for_a_few_requests():
    """The modest peer has another address; one heavy request of each connection takes longer than a turn."""
    greedy_count, served = 40, []

    def serve(command, channel):
        if command.code == HEAVY:
            until = time.monotonic() + 0.006
            while time.monotonic() < until:
                pass
        served.append(command.code)
        channel.write(encode(response_to(command, 0, None, b"")))

    async with running_listener(serve) as server, open_raw_connection(server.address) as modest:
        greedy = [
            await asyncio.open_connection(*server.address, local_addr=("127.0.0.2", 0)) for _ in range(greedy_count)
        ]
        await eventually(lambda: len(server.channels) == greedy_count + 1)
        for _, writer in greedy:
            writer.write(encode(RemotingCommand(HEAVY)) * 3)
        await eventually(lambda: served)
        for _ in range(5):
            before = len(served)
            await modest.request(RemotingCommand(ECHO))
            assert served[before:].count(HEAVY) <= 20, "not those of all connections"
        assert served.count(HEAVY) < 3 * greedy_count, "they were still waiting"
        await eventually(lambda: served.count(HEAVY) == 3 * greedy_count)
        for _, writer in greedy:
            writer.close()
