"""Long polling of pops, which wait for several queues at once."""

import asyncio

import pytest

from sparrow.broker.consume.long_poll import LongPollTable, ParkedRequest
from sparrow.model.queue import Queue

QUEUES = tuple(Queue("T", number) for number in range(4))


@pytest.fixture
async def hold():
    return LongPollTable(asyncio.get_running_loop(), pulls_max=10)


class Pop:
    """A parked pop; records each time the long-poll table resumes it."""

    def __init__(self, *, is_answered=True, channel="channel"):
        self.looks: list[bool] = []
        self.is_answered = is_answered
        self.held = ParkedRequest(QUEUES[0], 0, self.resume, channel, other_queues=QUEUES[1:])

    def resume(self, _held, is_over):
        self.looks.append(is_over)
        return self.is_answered


async def turn():
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize("queue", QUEUES)
async def test_growth_of_any_of_its_queues_wakes_a_pop(hold, queue):
    pop = Pop()
    hold.park(pop.held, 10_000)
    assert hold.parked_on(queue) == [pop.held]
    hold.notify_growth(queue, 1)
    await turn()
    assert pop.looks == [False]
    assert (hold.count, [hold.parked_on(each) for each in QUEUES]) == (0, [[], [], [], []])


async def test_a_pop_is_answered_once_when_all_its_queues_grow(hold):
    pop = Pop()
    hold.park(pop.held, 10_000)
    for queue in QUEUES:
        hold.notify_growth(queue, 1)
    await turn()
    for queue in QUEUES:
        hold.notify_growth(queue, 2)
    await turn()
    assert pop.looks == [False]


async def test_a_pop_without_messages_stays_parked_on_all_its_queues(hold):
    pop = Pop(is_answered=False)
    hold.park(pop.held, 10_000)
    for times, queue in enumerate(QUEUES, 1):
        hold.notify_growth(queue, 1)
        await turn()
        assert len(pop.looks) == times
    assert hold.count == 1


async def test_a_pop_counts_once_and_is_dropped_with_its_connection(hold):
    pop, other = Pop(), Pop(channel="another")
    hold.park(pop.held, 10_000)
    hold.park(other.held, 10_000)
    assert hold.count == 2
    hold.drop_channel("channel")
    assert [hold.parked_on(queue) for queue in QUEUES] == [[other.held]] * 4
    hold.release_all()
    assert (pop.looks, other.looks, hold.count) == ([], [True], 0)
