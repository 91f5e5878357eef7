"""The futures of handed-over messages behave as those of `concurrent.futures`, whoever comes first."""

import threading
from concurrent.futures import CancelledError, as_completed, wait

import pytest

from sparrow.client.blocking.send_future import ThreadSendFuture
from sparrow.model.send_result import SendResult, SendStatus

STORED = SendResult(SendStatus.OK, "id", "offset id", "orders", "sparrow", 0, 7)


class Counts:
    def __init__(self) -> None:
        self.stored = self.failed = 0

    def count_stored(self) -> None:
        self.stored += 1

    def count_failed(self, error: BaseException | None) -> None:
        self.failed += 1


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
def future(counts: Counts) -> ThreadSendFuture:
    return ThreadSendFuture(counts)


def test_result_that_is_there_is_returned_without_a_condition(future: ThreadSendFuture, counts: Counts) -> None:
    assert not future.done()
    assert future.set_running_or_notify_cancel()
    future.set_result(STORED)
    assert future.done()
    assert future.result(0) is STORED
    assert future._own_condition is None
    assert future.exception(0) is None
    assert (counts.stored, counts.failed) == (1, 0)


def test_error_is_raised(future: ThreadSendFuture, counts: Counts) -> None:
    future.set_running_or_notify_cancel()
    future.set_exception(OSError("as told"))
    with pytest.raises(OSError, match="as told"):
        future.result(0)
    assert isinstance(future.exception(0), OSError)
    assert (counts.stored, counts.failed) == (0, 1)


def test_without_a_result_a_wait_times_out(future: ThreadSendFuture) -> None:
    with pytest.raises(TimeoutError):
        future.result(0)
    future.set_running_or_notify_cancel()
    future.set_result(STORED)
    assert future.result(0) is STORED


def test_waiting_threads_get_the_result(counts: Counts) -> None:
    futures = [ThreadSendFuture(counts) for _ in range(200)]
    found: list[SendResult] = []
    waiting = [threading.Thread(target=lambda each=each: found.append(each.result(60))) for each in futures]
    for thread in waiting[::2]:
        thread.start()
    for future in futures:
        future.set_running_or_notify_cancel()
        future.set_result(STORED)
    for thread in waiting[1::2]:
        thread.start()
    for thread in waiting:
        thread.join(60)
    assert found == [STORED] * 200


def test_callbacks_run_before_and_after_the_result(future: ThreadSendFuture) -> None:
    called: list[str] = []
    future.add_done_callback(lambda done: called.append(done.result().message_id))
    future.set_running_or_notify_cancel()
    future.set_result(STORED)
    future.add_done_callback(lambda done: called.append("late"))
    assert called == ["id", "late"]


def test_cancelled_future_is_not_sent(future: ThreadSendFuture) -> None:
    assert future.cancel()
    assert future.done()
    assert not future.set_running_or_notify_cancel()
    with pytest.raises(CancelledError):
        future.result(0)


def test_running_future_cannot_be_cancelled(future: ThreadSendFuture) -> None:
    future.set_running_or_notify_cancel()
    assert future.running()
    assert not future.cancel()


def test_many_can_be_waited_for_together(counts: Counts) -> None:
    futures = [ThreadSendFuture(counts) for _ in range(20)]
    for future in futures:
        future.set_running_or_notify_cancel()
    for future in futures[:10]:
        future.set_result(STORED)
    assert wait(futures, 0).done == set(futures[:10])

    def settle_others() -> None:
        for future in futures[10:]:
            future.set_result(STORED)

    settling = threading.Thread(target=settle_others)
    settling.start()
    assert len(list(as_completed(futures, 60))) == 20
    settling.join()
