"""The blocking client against a real broker: additions to the asyncio client, and equal methods in both."""

import asyncio
import inspect
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tests.support.server_processes import server_process
from tests.support.wait import wait_until

from sparrow.client import Admin, Consumer, Message, Producer, SendResult, SendStatus, aio, blocking
from sparrow.client.blocking import fetch_buffer
from sparrow.client.blocking.loop_thread import LoopThread
from sparrow.model.errors import Closed, Refused, UnknownTopic
from sparrow.testing import RunningPlatform, run_platform
from sparrow.wire.bodies import QueueRef

TOPIC = "orders"


@pytest.fixture
def producer(platform: RunningPlatform) -> Iterator[Producer]:
    with Producer(platform.name_servers) as producer:
        yield producer


@pytest.fixture
def queue(platform: RunningPlatform) -> QueueRef:
    """The only queue of the topic."""
    with Admin(platform.name_servers) as admin:
        (queue,) = admin.create_topic(TOPIC, queues=1).read_queues
        return queue


def numbered(producer: Producer, count: int) -> list[SendResult]:
    return producer.send_batch([Message(TOPIC, str(number)) for number in range(count)])


def consuming(platform: RunningPlatform, group: str = "billing") -> Consumer:
    consumer = Consumer(platform.name_servers, group=group)
    consumer.subscribe(TOPIC)
    return consumer


def first_number(platform: RunningPlatform, group: str = "billing") -> int:
    """Return the number of the message that the group reads next."""
    with consuming(platform, group) as consumer:
        return int(next(consumer).body)


def polled(consumer: Consumer, count: int) -> list[int]:
    """Poll exactly this many messages. Those of all polls but the last one count as handled."""
    found: list[int] = []
    while len(found) < count:
        found += [int(message.body) for message in consumer.poll(count - len(found), timeout_ms=10_000)]
    return found


# -- produce ----------------------------------------------------------------------------------------------------------


def test_sent_message_is_received(platform: RunningPlatform, producer: Producer) -> None:
    sent = producer.send(Message(TOPIC, "a book", tags="paid", keys="order-7", properties={"city": "Lima"}))
    assert sent.status is SendStatus.OK
    with consuming(platform) as consumer:
        message = next(consumer)
    assert (message.body, message.tags, message.keys) == (b"a book", "paid", ["order-7"])
    assert message.properties["city"] == "Lima"
    assert (message.unique_key, message.queue_offset) == (sent.message_id, sent.queue_offset)


def test_send_soon_keeps_the_order_and_its_futures_have_the_offsets(platform: RunningPlatform, queue: QueueRef) -> None:
    with Producer(platform.name_servers, linger_ms=1) as producer:
        futures = [producer.send_soon(Message(TOPIC, str(number)), queue=queue) for number in range(500)]
        assert [future.result(10).queue_offset for future in futures] == list(range(500))
    with consuming(platform) as consumer:
        assert [int(next(consumer).body) for _ in range(500)] == list(range(500))


def test_send_soon_waits_instead_of_raising_busy_when_the_buffer_is_full(
    platform: RunningPlatform, queue: QueueRef
) -> None:
    with Producer(platform.name_servers, linger_ms=1, unsent_bytes_max=20_000) as producer:
        futures = [producer.send_soon(Message(TOPIC, bytes(5_000)), queue=queue) for _ in range(100)]
        producer.flush()
        assert [future.result(0).queue_offset for future in futures] == list(range(100))


async def test_sender_without_pauses_does_not_starve_the_event_loop(tmp_path: Path) -> None:
    # Servers in other processes: in this one, they would compete with the loop for the interpreter.
    async with server_process(
        "up", "--no-console", "--data", str(tmp_path / "data"), "--port", "0", "--name-server-port", "0"
    ) as said:
        name_servers = next(line.split()[-1] for line in said if line.startswith("name server"))
        assert await asyncio.to_thread(_send_without_pause, name_servers)


def _send_without_pause(name_servers: str) -> bool:
    with Producer(name_servers, linger_ms=1) as producer:
        first = producer.send_soon(Message(TOPIC, b"first"))
        begun = time.monotonic()
        while not first.done():
            producer.send_soon(Message(TOPIC, b"more"))
            assert time.monotonic() - begun < 20, "its own timeout is 3 s"
        return first.result().is_ok


def test_close_sends_buffered_messages(platform: RunningPlatform, queue: QueueRef) -> None:
    with Producer(platform.name_servers, linger_ms=60_000) as producer:
        futures = [producer.send_soon(Message(TOPIC, b"x")) for _ in range(10)]
    assert sorted(future.result(0).queue_offset for future in futures) == list(range(10))


def test_callback_may_call_send_soon_but_not_send(producer: Producer) -> None:
    outcome: Future[tuple[str, Future[SendResult]]] = Future()

    def sent(_: Future[SendResult]) -> None:
        try:
            producer.send(Message(TOPIC, b"would wait for itself"))
        except Refused as error:
            outcome.set_result((str(error), producer.send_soon(Message(TOPIC, b"second"))))

    producer.send_soon(Message(TOPIC, b"first")).add_done_callback(sent)
    said, second = outcome.result(10)
    assert "another thread" in said
    assert second.result(10).is_ok


def test_future_cancelled_before_the_handover_sends_nothing(producer: Producer, queue: QueueRef) -> None:
    with producer._handover._space_freed:  # the handover to the loop waits for this lock
        producer._handover._is_handing_over = True
    cancelled = producer.send_soon(Message(TOPIC, b"no"), queue=queue)
    kept = producer.send_soon(Message(TOPIC, b"yes"), queue=queue)
    assert cancelled.cancel()
    producer._opened().call_soon(producer._handover._start)
    assert kept.result(10).queue_offset == 0


def test_an_error_is_raised_where_the_call_was_made_and_shows_its_road() -> None:
    with run_platform(broker={"auto_create_topics": False}) as platform, Producer(platform.name_servers) as producer:
        with pytest.raises(UnknownTopic) as raised:
            producer.send(Message("nowhere", b"x"))
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert frames[0].name == "test_an_error_is_raised_where_the_call_was_made_and_shows_its_road"
    assert any("aio" in frame.filename for frame in frames)


# -- consume ----------------------------------------------------------------------------------------------------------


def test_message_counts_as_handled_when_the_next_one_is_requested(
    platform: RunningPlatform, producer: Producer, queue: QueueRef
) -> None:
    numbered(producer, 10)
    with consuming(platform) as consumer:
        assert [int(next(consumer).body) for _ in range(4)] == [0, 1, 2, 3]
    assert first_number(platform) == 3


def test_commit_includes_the_current_message_and_no_buffered_ones(
    platform: RunningPlatform, producer: Producer, queue: QueueRef
) -> None:
    numbered(producer, 10)
    with consuming(platform) as consumer:
        for _ in range(4):
            next(consumer)
        consumer.commit()
        with Admin(platform.name_servers) as admin:
            assert admin.progress("billing", TOPIC).queues[queue].committed == 4


def test_messages_of_earlier_polls_count_as_handled(
    platform: RunningPlatform, producer: Producer, queue: QueueRef
) -> None:
    numbered(producer, 10)
    with consuming(platform) as consumer:
        assert polled(consumer, 4) == [0, 1, 2, 3]
        assert [int(message.body) for message in consumer.poll(3, timeout_ms=10_000)] == [4, 5, 6]
    assert first_number(platform) == 4


def test_iteration_and_poll_may_alternate(platform: RunningPlatform, producer: Producer, queue: QueueRef) -> None:
    numbered(producer, 10)
    with consuming(platform) as consumer:
        assert int(next(consumer).body) == 0
        assert polled(consumer, 3) == [1, 2, 3]
        assert int(next(consumer).body) == 4


def test_poll_returns_an_empty_list_after_its_timeout(platform: RunningPlatform, queue: QueueRef) -> None:
    with consuming(platform) as consumer:
        assert consumer.poll(timeout_ms=1) == []


def test_slow_messages_are_settled_without_another_fetch(
    platform: RunningPlatform, producer: Producer, queue: QueueRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_buffer, "SETTLE_INTERVAL_S", -1)
    numbered(producer, 10)
    with consuming(platform) as consumer:
        for _ in range(4):
            next(consumer)
        assert consumer.positions(TOPIC) == {queue: 3}


def test_no_message_from_before_a_seek_is_returned_after_it(
    platform: RunningPlatform, producer: Producer, queue: QueueRef
) -> None:
    numbered(producer, 10)
    with consuming(platform) as consumer:
        assert [int(next(consumer).body) for _ in range(2)] == [0, 1]
        consumer.seek(queue, 7)
        assert [int(next(consumer).body) for _ in range(3)] == [7, 8, 9]


def test_queues_can_be_assigned_paused_and_pulled(
    platform: RunningPlatform, producer: Producer, queue: QueueRef
) -> None:
    numbered(producer, 3)
    with Consumer(platform.name_servers, group="billing") as consumer:
        consumer.assign([queue])
        assert polled(consumer, 3) == [0, 1, 2]
        assert consumer.queues == [queue]
        consumer.pause()
        consumer.resume([queue])
        producer.send(Message(TOPIC, b"3"))
        assert polled(consumer, 1) == [3]
        assert consumer.pull(queue, 0, count_max=2).next_offset == 2


def test_handler_runs_in_the_requested_number_of_threads(
    platform: RunningPlatform, producer: Producer, queue: QueueRef
) -> None:
    numbered(producer, 4)
    all_here = threading.Barrier(4, timeout=10)
    names: list[str] = []

    def handle(_: Message) -> None:
        all_here.wait()  # breaks unless four handlers run at once
        names.append(threading.current_thread().name)

    with consuming(platform) as consumer:
        consumer.start(handle, workers=4)
        wait_until(lambda: len(names) == 4)
    assert len(set(names)) == 4


def test_orderly_handler_gets_a_queue_in_order_and_in_batches(
    platform: RunningPlatform, producer: Producer, queue: QueueRef
) -> None:
    numbered(producer, 100)
    seen: list[int] = []
    sizes: list[int] = []

    def handle(messages: list[Message]) -> None:
        sizes.append(len(messages))
        seen.extend(int(message.body) for message in messages)

    with consuming(platform) as consumer:
        consumer.start(handle, batch=8, orderly=True)
        wait_until(lambda: len(seen) >= 100)
    assert seen == list(range(100))
    assert max(sizes) == 8


@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt])
def test_failing_handler_does_not_stop_the_other_messages(
    platform: RunningPlatform, producer: Producer, queue: QueueRef, error: type[BaseException]
) -> None:
    numbered(producer, 5)
    handled: set[int] = set()

    def handle(message: Message) -> None:
        if message.body == b"0":
            raise error
        handled.add(int(message.body))

    with consuming(platform) as consumer:
        consumer.start(handle, workers=1)
        wait_until(lambda: handled == {1, 2, 3, 4})
        assert producer.send(Message(TOPIC, b"5")).is_ok


def test_handler_may_send(platform: RunningPlatform, producer: Producer, queue: QueueRef) -> None:
    numbered(producer, 3)
    results: list[SendResult] = []
    with consuming(platform) as consumer:
        consumer.start(lambda message: results.append(producer.send(Message("replies", message.body))), workers=2)
        wait_until(lambda: len(results) == 3)


# -- Ctrl-C, threads, processes ---------------------------------------------------------------------------------------


@pytest.fixture
def minds_ctrl_c() -> Iterator[None]:
    """Restore Ctrl-C, which a process in the background of a shell ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("minds_ctrl_c")
def test_ctrl_c_interrupts_the_wait_and_loses_no_message(
    platform: RunningPlatform, producer: Producer, queue: QueueRef
) -> None:
    main = threading.main_thread().ident
    assert main is not None
    consumer = consuming(platform)

    def interrupt() -> None:
        wait_until(lambda: consumer._fetching is not None)
        signal.pthread_kill(main, signal.SIGINT)

    with consumer:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            next(consumer)
        assert consumer._fetching is not None
        assert consumer._fetching.done()
        numbered(producer, 3)
        assert [int(next(consumer).body) for _ in range(3)] == [0, 1, 2]


def test_close_from_another_thread_ends_the_iteration(platform: RunningPlatform, queue: QueueRef) -> None:
    consumer = consuming(platform)
    bodies: list[bytes] = []
    reader = threading.Thread(target=lambda: bodies.extend(message.body for message in consumer))
    reader.start()
    wait_until(lambda: consumer._fetching is not None)
    consumer.close()
    reader.join(10)
    assert not reader.is_alive()
    assert bodies == []


def test_closed_client_stays_closed(producer: Producer) -> None:
    producer.close()
    producer.close()
    with pytest.raises(Closed):
        producer.send(Message(TOPIC, b"x"))
    with pytest.raises(Closed):
        producer.open()


THREADS_OF_CLIENTS = """
import sys, threading
from sparrow.client import Admin, Producer

def loops():
    return sum(thread.name == "sparrow client" for thread in threading.enumerate())

counted = [loops()]
with Producer(sys.argv[1]):
    with Admin(sys.argv[1]) as admin:
        admin.topics()
        counted.append(loops())
    counted.append(loops())
counted.append(loops())
print(counted)
"""


def test_all_clients_share_one_thread_that_ends_with_the_last_client(platform: RunningPlatform) -> None:
    # A new process: in this one, clients of other tests may be open.
    counting = [sys.executable, "-c", THREADS_OF_CLIENTS, platform.name_servers]
    counted = subprocess.run(counting, check=True, capture_output=True, text=True, timeout=60).stdout
    assert counted.strip() == "[0, 1, 1, 0]"


def in_child(producer: Producer, name_servers: str, answer: Connection) -> None:
    try:
        producer.send(Message(TOPIC, b"x"))
        said = "sent"
    except Refused as error:
        said = str(error)
    producer.close()  # the parent's connections stay open
    with Producer(name_servers) as own:
        answer.send((said, own.send(Message(TOPIC, b"from the child")).is_ok))


@pytest.mark.skipif(sys.platform == "win32", reason="this platform has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_client_used_in_a_forked_child_raises_with_the_remedy(platform: RunningPlatform, producer: Producer) -> None:
    fork = multiprocessing.get_context("fork")
    answer, asked = fork.Pipe()
    child = fork.Process(target=in_child, args=(producer, platform.name_servers, asked))
    child.start()
    assert answer.poll(30)
    said, is_ok = answer.recv()
    child.join(30)
    assert "open another in process" in said
    assert is_ok
    assert producer.send(Message(TOPIC, b"from the parent")).is_ok


def test_timeout_cancels_the_coroutine_before_the_caller_continues() -> None:
    loop = LoopThread("test")
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    with pytest.raises(TimeoutError):
        loop.run(forever(), timeout_s=0.01)
    assert ended == ["cancelled"]
    loop.stop()
    with pytest.raises(Closed):
        loop.run(forever())


def test_waiting_caller_raises_closed_when_the_loop_stops() -> None:
    loop = LoopThread("test")
    begun = threading.Event()
    outcome: Future[None] = Future()

    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            loop.run(forever())
        except Closed as error:
            outcome.set_exception(error)

    threading.Thread(target=wait).start()
    assert begun.wait(10)
    loop.stop()
    assert isinstance(outcome.exception(10), Closed)


# -- admin, tables, signatures ----------------------------------------------------------------------------------------


def test_admin_methods_work(platform: RunningPlatform, producer: Producer, queue: QueueRef) -> None:
    sent = producer.send(Message(TOPIC, b"x", keys="order-7"))
    with Admin(platform.name_servers) as admin:
        assert TOPIC in admin.topics()
        assert admin.topic_bounds(TOPIC)[queue] == (0, 1)
        assert [message.body for message in admin.find_by_key(TOPIC, "order-7")] == [b"x"]
        assert admin.find_by_id(sent.offset_id).body == b"x"
        assert admin.members("billing") == []
        admin.delete_topic(TOPIC)
        with pytest.raises(UnknownTopic):
            admin.route(TOPIC)


def test_table_survives_the_round_trip(platform: RunningPlatform, producer: Producer, queue: QueueRef) -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"body": [b"1", b"2", b"3"], "tags": ["a", "b", "a"]})
    assert producer.send_table(TOPIC, table) == 3
    with Consumer(platform.name_servers, group="billing") as consumer:
        assert consumer.read_table(TOPIC, columns=["body", "tags"]).to_pydict() == table.to_pydict()
        assert consumer.read_table(TOPIC, expression="a", columns=["body"]).to_pydict() == {"body": [b"1", b"3"]}


@pytest.mark.parametrize("name", ["Admin", "Consumer", "PopConsumer", "Producer"])
def test_blocking_and_asyncio_clients_have_the_same_methods(name: str) -> None:
    def public(kind: type) -> dict[str, object]:
        return {
            name: member for name, member in inspect.getmembers(kind) if name == "__init__" or not name.startswith("_")
        }

    ours, theirs = public(getattr(blocking, name)), public(getattr(aio, name))
    assert ours.keys() == theirs.keys()
    for method, member in theirs.items():
        if inspect.isfunction(member):
            wanted = {
                parameter.name: (parameter.kind, parameter.default)
                for parameter in inspect.signature(member).parameters.values()
                if parameter.name != "session"
            }
            given = inspect.signature(ours[method]).parameters  # type: ignore[arg-type]
            assert {key: (value.kind, value.default) for key, value in given.items()} == wanted, method
