"""The official Java client as a process that takes orders; what it can do is listed in java/src/Client.java."""

import itertools
import json
import queue
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
from tests.interop.official import Kit

ANSWER_TIMEOUT_S = 120
# When a notice is lost, a client looks at the queues of its group every 20 s and says hello to brokers every 30 s; a
# pull that a broker refuses because it has not heard of the latest subscription waits for that hello.
SETTLE_S = 60

Mode = Literal["sync", "async", "oneway", "batch"]
State = Literal["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]


class Seen(msgspec.Struct, frozen=True, rename="camel"):
    """A message as the client saw it."""

    topic: str
    queue_id: int
    queue_offset: int
    msg_id: str | None
    offset_msg_id: str
    body: str
    tags: str | None
    keys: str | None
    store_timestamp: int
    reconsume_times: int
    properties: dict[str, str]
    nth: int = 0
    """Its place among all that consumers of this JVM were given."""


class Sent(msgspec.Struct, frozen=True, rename="camel"):
    status: str
    msg_id: str
    offset_msg_id: str
    queue_id: int
    queue_offset: int
    broker: str


class Half(msgspec.Struct, frozen=True, rename="camel"):
    """What the client tells of a message sent in a transaction: not where the broker keeps it meanwhile."""

    status: str
    msg_id: str
    queue_id: int


class Bounds(msgspec.Struct, frozen=True, rename="camel"):
    """A queue's first offset, the one after its last, and the one a given time stands for."""

    queue_id: int
    min: int
    max: int
    earliest_store_time: int
    at_time: int | None = None


class JavaError(AssertionError):
    """What the Java side threw."""


class JavaClient:
    """One JVM. Orders are carried out one after the other."""

    def __init__(self, process: subprocess.Popen[str], version: str) -> None:
        self.version = version
        self._process = process
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ids = itertools.count(1)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def order(self, command: str, **fields: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"command": command, **fields}) + "\n")
        self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=ANSWER_TIMEOUT_S)
        except queue.Empty:
            self._process.kill()  # a late answer would be taken for the next one
            raise AssertionError(f"the Java client did not answer {command} in {ANSWER_TIMEOUT_S} s") from None
        assert line, f"the Java client ended at {command}"
        answer = json.loads(line)
        if "error" in answer:
            raise JavaError(f"{command}: {answer['error']}")
        return answer["ok"]

    def name(self, prefix: str) -> str:
        """A name nobody else has used in this JVM."""
        return f"{prefix}_{next(self._ids)}"

    @contextmanager
    def producer(self, group: str = "interop_producers", **options: object) -> Iterator["Producer"]:
        """Options: transactional, or trace."""
        producer = Producer(self, self.name("producer"))
        self.order("start_producer", id=producer.id, group=group, **options)
        try:
            yield producer
        finally:
            if self._process.poll() is None:
                self.order("stop_producer", id=producer.id)

    def kill(self) -> None:
        """Ends the JVM as a power cut does; its clients say goodbye to nobody."""
        self._process.kill()
        self._process.wait()

    def push_consumer(self, group: str, topic: str, **options: object) -> "Consumer":
        """Options: expression or sql, model, orderly, from, refusals, refusalLevel, retriesMax, replies, trace.

        And popInvisibleMs, with a broker that says to pop.
        """
        return self._consumer("start_push_consumer", group, topic, options)

    def lite_pull_consumer(self, group: str, topic: str, **options: object) -> "Consumer":
        """Options: expression, from; or queueId and offset."""
        return self._consumer("start_lite_pull", group, topic, options)

    def _consumer(self, command: str, group: str, topic: str, options: dict[str, object]) -> "Consumer":
        consumer = Consumer(self.name("consumer"), self)
        self.order(command, id=consumer.id, group=group, topic=topic, **options)
        return consumer


class Producer:
    def __init__(self, java: JavaClient, id: str) -> None:
        self.id = id
        self.java = java

    def _order(self, command: str, **fields: object) -> Any:
        return self.java.order(command, id=self.id, **fields)

    def send(self, topic: str, messages: Sequence[dict[str, Any] | str], *, mode: Mode = "sync") -> list[Sent]:
        """A message is its body, or a dict with body and, as wanted, tags, keys, properties and hash.

        For later: delayLevel, and since 5.0 delayTimeMs and deliverTimeMs.
        """
        dicts = [{"body": message} if isinstance(message, str) else message for message in messages]
        sent = msgspec.convert(self._order("send", topic=topic, mode=mode, messages=dicts), list[Sent])
        assert all(one.status == "SEND_OK" for one in sent)
        return sent

    def send_in_transaction(self, topic: str, message: dict[str, Any], state: State) -> Half:
        """The transaction ends with `state`; a broker that asks is told the words of the property `answers`."""
        sent = self._order("send_in_transaction", topic=topic, message=message, state=state)
        return msgspec.convert(sent, Half)

    def asked(self, count: int = 0, *, within_s: float = 0) -> list[Seen]:
        """The transactions the broker has asked about since the last call."""
        fields = {"atLeast": count, "timeoutMs": int(within_s * 1000)}
        return msgspec.convert(self._order("asked", **fields), list[Seen])

    def request(self, topic: str, body: str, *, timeout_ms: int = 20_000) -> str:
        """The text of the reply."""
        reply: str = self._order("request", topic=topic, message={"body": body}, timeoutMs=timeout_ms)
        return reply

    def create_topic(self, topic: str, *, like: str, queues: int = 4, flags: int = 0) -> None:
        self._order("create_topic", topic=topic, key=like, queues=queues, flags=flags)

    def query_by_key(self, topic: str, key: str) -> list[Seen]:
        return msgspec.convert(self._order("query_by_key", topic=topic, key=key), list[Seen])

    def view_by_id(self, topic: str, msg_id: str) -> Seen:
        return msgspec.convert(self._order("view_by_id", topic=topic, msgId=msg_id), Seen)

    def offsets(self, topic: str, *, timestamp: int | None = None) -> list[Bounds]:
        found = msgspec.convert(self._order("offsets", topic=topic, timestamp=timestamp), list[Bounds])
        return sorted(found, key=lambda bounds: bounds.queue_id)


class Consumer:
    """Stop it with `stop`, or use it as a context."""

    def __init__(self, java: JavaClient, id: str) -> None:
        self.id = id
        self.seen: list[Seen] = []
        self._java = java

    def _order(self, command: str, **fields: object) -> Any:
        return self._java.order(command, id=self.id, **fields)

    def receive(self, count: int = 0, *, within_s: float = SETTLE_S) -> list[Seen]:
        """What has come since the last call, after waiting until it is `count` messages; fails if it never is."""
        fresh = self.drain(count, within_s=within_s)
        assert len(fresh) >= count, f"{len(fresh)} of {count} messages in {within_s} s: {[seen.body for seen in fresh]}"
        return fresh

    def drain(self, count: int = 0, *, within_s: float = 0) -> list[Seen]:
        """The same for callers who can do with less."""
        fields = {"atLeast": count, "timeoutMs": int(within_s * 1000)}
        fresh = msgspec.convert(self._order("received", **fields), list[Seen])
        self.seen += fresh
        return fresh

    def queues(self, count: int | None = None, *, within_s: float = SETTLE_S) -> set[int]:
        """The queues it reads, after waiting until it has `count` of them."""
        wanted = {} if count is None else {"count": count, "timeoutMs": int(within_s * 1000)}
        found = set(self._order("queues_of", **wanted))
        assert count is None or len(found) == count, f"it has {found} instead of {count} queues"
        return found

    def stop(self) -> None:
        """Whatever it still got is in `seen` afterwards."""
        self.seen += msgspec.convert(self._order("stop_consumer"), list[Seen])

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


@contextmanager
def java_client(kit: Kit, name_server: str, folder: Path) -> Iterator[JavaClient]:
    """Starts the JVM; its logs and the offsets of broadcast consumers stay in `folder`."""
    command = kit.command("Client", name_server, user_home=folder, heap_mb=256)
    with open(folder / "client.err", "wb") as errors:
        process = subprocess.Popen(
            command,
            cwd=folder,
            text=True,
            encoding="utf-8",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        yield JavaClient(process, kit.version)
    finally:
        assert process.stdin is not None
        process.stdin.close()  # the client leaves at the end of its orders
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
