"""Long polling of pulls, on an event loop whose clock moves only when a test moves it."""

import asyncio
import threading

import pytest

from sparrow.broker.consume.long_poll import LongPollTable, ParkedRequest
from sparrow.model.errors import Busy
from sparrow.model.queue import Queue

Q0, Q1 = Queue("T", 0), Queue("T", 1)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop with a manual clock; due timers run in its next iteration."""

    def __init__(self):
        self.now = 1000.0
        super().__init__()

    def time(self):
        return self.now


@pytest.fixture
def loop():
    loop = JumpingLoop()
    yield loop
    loop.close()


@pytest.fixture
def hold(loop):
    return LongPollTable(loop, pulls_max=100)


def turn(loop, times=3):
    """Run everything that is ready, and the callbacks that become ready by it."""
    for _ in range(times):
        loop.call_soon(loop.stop)
        loop.run_forever()


def jump(loop, seconds):
    loop.now += seconds
    turn(loop)


class Pull:
    """A parked pull; records each time the long-poll table resumes it."""

    def __init__(self, queue=Q0, *, matches=True, offset=0):
        self.seen, self.matches = [], matches
        self.held = ParkedRequest(queue, offset, self.resume)

    def resume(self, held, is_over):
        assert held is self.held
        self.seen.append("over" if is_over else "notify_growth")
        return is_over or self.matches


def parked(hold, *pulls, long_poll_ms=15_000):
    for pull in pulls:
        hold.park(pull.held, long_poll_ms)
    return pulls


# -- queue growth -----------------------------------------------------------------------------------------------------


def test_a_pull_wakes_when_its_queue_grows(loop, hold):
    (pull,) = parked(hold, Pull())
    turn(loop)
    assert pull.seen == []
    hold.notify_growth(Q0, 1)
    assert pull.seen == []  # not while the append is running
    turn(loop)
    assert pull.seen == ["notify_growth"]
    assert hold.count == 0


def test_growth_of_other_queues_does_not_wake_a_pull(loop, hold):
    here, there, elsewhere = parked(hold, Pull(Q0), Pull(Q1), Pull(Queue("U", 0)))
    hold.notify_growth(Q1, 1)
    turn(loop)
    assert (here.seen, there.seen, elsewhere.seen) == ([], ["notify_growth"], [])
    assert hold.count == 2


def test_many_messages_in_one_loop_iteration_wake_a_pull_once(loop, hold):
    (pull,) = parked(hold, Pull(matches=False))
    for end in range(1000):
        hold.notify_growth(Q0, end)
    turn(loop)
    assert pull.seen == ["notify_growth"]


def test_pulls_of_one_queue_wake_in_the_order_of_their_arrival(loop, hold):
    order = []
    pulls = [Pull() for _ in range(10)]
    for number, pull in enumerate(pulls):
        pull.held.resume = lambda held, is_over, number=number: bool(order.append(number)) or True
    parked(hold, *pulls)
    hold.notify_growth(Q0, 1)
    turn(loop)
    assert order == list(range(10))


def test_a_pull_without_matching_messages_stays_parked_until_its_deadline(loop, hold):
    (pull,) = parked(hold, Pull(matches=False), long_poll_ms=5_000)
    for _ in range(3):
        hold.notify_growth(Q0, 1)
        turn(loop)
    assert pull.seen == ["notify_growth"] * 3
    assert hold.count == 1
    jump(loop, 5.2)
    assert pull.seen == ["notify_growth"] * 3 + ["over"]
    assert hold.count == 0


def test_another_thread_may_report_growth(loop, hold):
    (pull,) = parked(hold, Pull())
    looked_from = []
    pull.held.resume = lambda held, is_over: bool(looked_from.append(threading.get_ident())) or True
    thread = threading.Thread(target=hold.notify_growth, args=(Q0, 1))
    thread.start()
    thread.join()
    assert looked_from == []
    turn(loop)
    assert looked_from == [threading.get_ident()]


async def test_growth_reported_by_another_thread_wakes_a_sleeping_loop():
    """Nothing else wakes the loop: there is no poll, and no timer for the next ten seconds."""
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    hold = LongPollTable(loop, pulls_max=10)
    hold.park(ParkedRequest(Q0, 0, lambda held, is_over: bool(woken.set()) or True), 15_000)
    threading.Timer(0.02, hold.notify_growth, (Q0, 1)).start()
    asked_at = loop.time()
    async with asyncio.timeout(30):
        await woken.wait()
    assert loop.time() - asked_at < 5


@pytest.fixture
def hasty(loop):
    """A table that gives others a turn after each request."""
    return LongPollTable(loop, pulls_max=10_000, turn_s=0)


def seen_of(pulls):
    return [len(pull.seen) for pull in pulls]


def test_many_pulls_are_woken_in_several_iterations_of_the_loop(loop, hasty):
    pulls = parked(hasty, *(Pull() for _ in range(10)))
    hasty.notify_growth(Q0, 1)
    for woken in range(1, 11):
        turn(loop, times=1)
        assert sum(seen_of(pulls)) == woken
    assert hasty.count == 0


def test_growth_while_pulls_are_woken_does_not_wake_more_of_them_at_once(loop, hasty):
    pulls = parked(hasty, *(Pull(Q0) for _ in range(10)), *(Pull(Q1) for _ in range(10)))
    for woken in range(1, 21):
        hasty.notify_growth(Q0, 1)
        hasty.notify_growth(Q1, 1)
        turn(loop, times=1)
        assert sum(seen_of(pulls)) <= woken
    turn(loop, times=100)
    assert seen_of(pulls) == [1] * 20


def test_many_pulls_that_end_together_are_answered_in_several_iterations(loop, hasty):
    pulls = parked(hasty, *(Pull() for _ in range(10)), long_poll_ms=5_000)
    loop.now += 6
    turn(loop, times=2)
    assert 0 < sum(seen_of(pulls)) < 10
    turn(loop, times=20)
    assert [pull.seen for pull in pulls] == [["over"]] * 10
    assert hasty.count == 0


def test_many_pulls_of_a_closed_connection_leave_in_several_iterations(loop, hasty):
    pulls = [Pull() for _ in range(10)]
    for pull in pulls:
        pull.held.channel = "gone"
    parked(hasty, *pulls, Pull(Q1))
    hasty.drop_channel("gone")
    assert 1 < hasty.count < 11
    turn(loop, times=20)
    assert hasty.count == 1
    assert seen_of(pulls) == [0] * 10


def test_a_pull_that_leaves_while_others_are_woken_is_not_woken(loop):
    hold = LongPollTable(loop, pulls_max=10_000, turn_s=0)
    pulls = parked(hold, *(Pull() for _ in range(15)))
    gone = pulls[-1]
    gone.held.channel = None
    hold.notify_growth(Q0, 1)
    turn(loop, times=1)
    assert not gone.seen
    hold._forget(gone.held)
    turn(loop, times=30)
    assert not gone.seen
    assert hold.count == 0


def test_growth_of_a_queue_without_parked_pulls_is_not_recorded(loop, hold):
    hold.notify_growth(Q0, 1)
    assert not hold._grown
    (pull,) = parked(hold, Pull())
    turn(loop)
    assert pull.seen == []  # it arrived after the growth and has read the queue itself


def test_a_pull_parked_while_others_wake_stays_in_the_table(loop, hold):
    late = Pull()
    (first,) = parked(hold, Pull())
    real = first.held.resume

    def resume(held, is_over):
        parked(hold, late)
        return real(held, is_over)

    first.held.resume = resume
    hold.notify_growth(Q0, 1)
    turn(loop)
    assert hold.count == 1
    hold.notify_growth(Q0, 2)
    turn(loop)
    assert late.seen == ["notify_growth"]
    assert hold.count == 0


# -- deadlines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("long_poll_ms", [1, 99, 100, 101, 15_000, 60_000])
def test_a_pull_ends_within_one_slot_after_its_deadline_and_never_before_it(loop, hold, long_poll_ms):
    (pull,) = parked(hold, Pull(), long_poll_ms=long_poll_ms)
    jump(loop, long_poll_ms / 1000 - 0.0005)
    assert pull.seen == []
    jump(loop, 0.1 + 0.001)
    assert pull.seen == ["over"]
    assert hold.count == 0


def test_deadlines_hold_in_any_order_of_parking(loop, hold):
    late, soon, later = Pull(), Pull(Q1), Pull()
    hold.park(late.held, 20_000)
    hold.park(soon.held, 1_000)
    hold.park(later.held, 40_000)
    for seconds, seen in [(1.2, 1), (19.0, 2), (20.0, 3)]:
        jump(loop, seconds)
        assert sum(pull.seen == ["over"] for pull in (late, soon, later)) == seen
    assert hold._timer is None


def test_a_loop_that_slept_too_long_ends_all_overdue_pulls(loop, hold):
    pulls = [Pull(Queue("T", number)) for number in range(50)]
    for number, pull in enumerate(pulls):
        hold.park(pull.held, 1_000 * number)
    jump(loop, 3600)
    assert all(pull.seen == ["over"] for pull in pulls)
    assert (hold.count, hold._waiting, hold._slots, hold._slot_order) == (0, {}, {}, [])


def test_one_timer_serves_all_deadlines(loop, hold):
    parked(hold, *(Pull(Queue("T", number)) for number in range(50)), long_poll_ms=15_000)
    parked(hold, *(Pull(Queue("U", number)) for number in range(50)), long_poll_ms=10_000)
    assert sum(not timer.cancelled() for timer in loop._scheduled) == 1


def test_an_answered_pull_does_not_end_a_second_time_at_its_deadline(loop, hold):
    (pull,) = parked(hold, Pull())
    hold.notify_growth(Q0, 1)
    turn(loop)
    jump(loop, 60)
    assert pull.seen == ["notify_growth"]
    assert hold.count == 0


def test_growth_and_deadline_in_one_iteration_answer_a_pull_once(loop, hold):
    (pull,) = parked(hold, Pull(), long_poll_ms=100)
    hold.notify_growth(Q0, 1)
    jump(loop, 1)
    assert pull.seen in (["notify_growth"], ["over"])
    assert hold.count == 0


# -- closing and limits -----------------------------------------------------------------------------------------------


def test_a_pull_of_a_closed_connection_is_dropped_at_its_next_wake(loop, hold):
    """`broker/consume/pull` returns True for a closed channel, so that the pull is not parked again."""
    gone, stays = Pull(), Pull(matches=False)
    parked(hold, gone, stays)
    hold.notify_growth(Q0, 1)
    turn(loop)
    assert hold.count == 1
    hold.notify_growth(Q0, 2)
    turn(loop)
    assert (gone.seen, stays.seen) == (["notify_growth"], ["notify_growth", "notify_growth"])


def test_a_full_table_refuses_a_pull_as_busy_and_does_not_keep_it(loop):
    hold = LongPollTable(loop, pulls_max=2)
    parked(hold, Pull(), Pull(Q1))
    refused = Pull()
    with pytest.raises(Busy):
        hold.park(refused.held, 1_000)
    hold.notify_growth(Q0, 1)
    turn(loop)
    assert refused.seen == []
    parked(hold, Pull())  # there is room again
    assert hold.count == 2


def test_release_all_answers_every_pull_and_stops_the_timer(loop, hold):
    pulls = parked(hold, *(Pull(Queue("T", number % 3)) for number in range(10)))
    hold.release_all()
    assert all(pull.seen == ["over"] for pull in pulls)
    assert hold.count == 0
    assert not hold._waiting
    jump(loop, 60)
    assert all(pull.seen == ["over"] for pull in pulls)


def test_the_table_accepts_pulls_after_release_all(loop, hold):
    parked(hold, Pull())
    hold.release_all()
    (pull,) = parked(hold, Pull(), long_poll_ms=15_000)
    jump(loop, 15.2)
    assert pull.seen == ["over"]


def test_a_hundred_thousand_pulls_leave_no_state_behind(loop):
    hold = LongPollTable(loop, pulls_max=1_000)
    for round_ in range(1_000):
        queues = [Queue("T", number) for number in range(100)]
        parked(hold, *(Pull(queue) for queue in queues), long_poll_ms=15_000)
        for queue in queues:
            hold.notify_growth(queue, round_)
        loop.now += 0.01
        turn(loop, times=2)
    # 10 s passed, in slots of 100 ms.
    assert hold.count == 0
    assert not hold._waiting
    assert not hold._grown
    assert len(hold._slots) == len(hold._slot_order) <= 102
    assert not any(hold._slots.values())
    assert len([timer for timer in loop._scheduled if not timer.cancelled()]) <= 1
    jump(loop, 16)
    assert (hold._slots, hold._slot_order, hold._timer) == ({}, [], None)


class Peer:
    def __init__(self, host):
        self.host = host


def pull_of(peer):
    pull = Pull()
    pull.held = ParkedRequest(Q0, 0, pull.resume, peer)
    return pull


def test_hosts_take_turns_when_many_pulls_are_woken(loop, hasty):
    greedy = [pull_of(Peer("10.0.0.1")) for _ in range(50)]
    parked(hasty, *greedy)
    hasty.notify_growth(Q0, 1)
    turn(loop, times=5)
    honest = pull_of(Peer("10.0.0.2"))
    parked(hasty, honest)
    hasty.notify_growth(Q0, 2)
    turn(loop, times=4)
    assert honest.seen == ["notify_growth"]
    assert 0 < hasty.count < 50, "the others still wait for their turn"
    turn(loop, times=200)
    assert hasty.count == 0


def test_a_host_with_fewer_requests_gets_a_place_of_the_host_with_the_most(loop):
    hold = LongPollTable(loop, pulls_max=4)
    greedy = [pull_of(Peer("10.0.0.1")) for _ in range(4)]  # four connections of one host
    parked(hold, *greedy)
    with pytest.raises(Busy):
        hold.park(pull_of(Peer("10.0.0.1")).held, 1_000)
    honest = [pull_of(Peer(f"10.0.0.{number}")) for number in (2, 3)]
    parked(hold, *honest)
    assert [pull.seen for pull in greedy] == [["over"], ["over"], [], []], "the oldest are answered early"
    assert hold.count == 4
    parked(hold, pull_of(Peer("10.0.0.4")))  # one of the two that are left to the greedy host
    with pytest.raises(Busy):
        hold.park(pull_of(Peer("10.0.0.2")).held, 1_000)
    assert [pull.seen for pull in honest] == [[], []]
    hold.release_all()
    assert hold.count == 0
    assert not hold._of_host
