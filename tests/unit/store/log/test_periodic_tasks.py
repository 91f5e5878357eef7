"""Periodic tasks: repeated, one at a time, and independent of errors."""

import logging
import threading
import time

import pytest
from tests.support.wait import wait_until

from sparrow.store.log.periodic_tasks import PeriodicTask, PeriodicTaskThread


@pytest.fixture
def started():
    keepers: list[PeriodicTaskThread] = []

    def start(*chores: PeriodicTask) -> PeriodicTaskThread:
        keepers.append(PeriodicTaskThread("chores-of-a-test", chores))
        keepers[-1].start()
        return keepers[-1]

    yield start
    for keeper in keepers:
        keeper.stop()


def test_a_task_runs_when_it_is_due_and_again(started):
    done: list[float] = []
    started(
        PeriodicTask("often", 0.0, lambda: done.append(time.monotonic())), PeriodicTask("rarely", 3600.0, pytest.fail)
    )
    wait_until(lambda: len(done) >= 2)


def test_a_failing_task_does_not_stop_the_others_and_is_reported_once(started, caplog):
    done: list[int] = []

    def fail() -> None:
        done.append(0)
        raise ValueError("no")

    with caplog.at_level(logging.ERROR):
        keeper = started(PeriodicTask("bad", 0.0, fail), PeriodicTask("good", 0.0, lambda: done.append(1)))
        wait_until(lambda: done.count(0) >= 2 and done.count(1) >= 2)
        keeper.stop()
    assert len([entry for entry in caplog.records if entry.levelno == logging.ERROR]) == 1


def test_a_task_that_recovered_and_fails_again_is_reported_again(started, caplog):
    results = iter([ValueError(), None, ValueError()])
    over = threading.Event()

    def do() -> None:
        result = next(results, over)
        if result is over:
            over.set()
        elif result is not None:
            raise result

    with caplog.at_level(logging.ERROR):
        started(PeriodicTask("moody", 0.0, do))
        assert over.wait(10)
    assert len([entry for entry in caplog.records if entry.levelno == logging.ERROR]) == 2


def test_no_task_runs_while_the_thread_is_paused(started):
    done: list[int] = []
    keeper = started(PeriodicTask("count", 0.0, lambda: done.append(1)))
    wait_until(lambda: done)
    with keeper.paused():
        count = len(done)
        keeper.run_soon("count")
        assert len(done) == count
    wait_until(lambda: len(done) > count)


def test_run_soon_runs_a_task_before_it_is_due(started):
    done = threading.Event()
    keeper = started(PeriodicTask("rarely", 3600.0, done.set))
    keeper.run_soon("rarely")
    assert done.wait(10)


def test_stop_waits_for_the_running_task(started):
    begun, ended = threading.Event(), threading.Event()

    def do() -> None:
        begun.set()
        ended.set()

    keeper = started(PeriodicTask("one", 0.0, do))
    assert begun.wait(10)
    keeper.stop()
    keeper.stop()
    assert ended.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "sparrow-chores-of-a-test"]
