"""Make the mistakes that new users make, and print what Sparrow says to each: what happened, and what to do.

The mistakes are texts in a table, because a type checker would refuse most of them as code. They are made against a
real platform: first the commands, in processes of their own, and meanwhile the Python code.
"""

import ast
import asyncio
import inspect
import logging
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from sqlalchemy import create_engine

import sparrow.testing
from sparrow import (  # noqa: F401 - the mistakes use all of these names
    Admin,
    Consumer,
    Credentials,
    Message,
    PopConsumer,
    Prefetch,
    Producer,
    QueueRef,
    RetryLater,
    aio,
)
from sparrow.bus import EventBus
from sparrow.spark.sink.options import parse_sink_options  # noqa: F401
from sparrow.spark.source.options import SourceOptions  # noqa: F401

OPERATOR = Credentials("operator", "keep this one safe")
SILENCE_MAX_S = 20.0
"""How long a mistake may go without an answer."""


class Mistake(NamedTuple):
    """A mistake, as Python code or as a command, and what the answer has to mention."""

    title: str
    code: str
    mentions: tuple[str, ...]


class Answer(NamedTuple):
    """What Sparrow says to a mistake."""

    mistake: Mistake
    text: str
    error: Exception | None = None
    """What the code raised; None if the text was logged or printed."""


MISTAKES = [
    Mistake(title, code, tuple(mentions))
    for title, code, *mentions in (
        # -- messages -------------------------------------------------------------------------------------------------
        ("A number as body", 'Message("orders", 42)', "42", "Message.json"),
        ("A dict as body", 'Message("orders", {"item": "book"})', "{'item': 'book'}", "Message.json"),
        ("None as body", 'Message("orders", None)', "None"),
        ("A list of tags", 'Message("orders", b"", tags=["paid", "big"])', "['paid', 'big']", "tags='paid'"),
        ("tag= instead of tags=", 'Message("orders", b"", tag="paid")', "'tag'", "tags="),
        ("key= instead of keys=", 'Message("orders", b"", key="order-7")', "'key'", "keys="),
        ("A number as key", 'Message("orders", b"", keys=7)', "7", "keys=['order-7']"),
        ("A property that is no text", 'Message("orders", b"", properties={"euros": 40})', "'euros'", "'40'"),
        ("A property as an argument", 'Message("orders", b"", city="Oslo")', "'city'", "properties="),
        ("A priority that does not exist", 'Message("orders", b"", priority="urgent")', "'urgent'", "high"),
        ("JSON of an object that has none", 'Message.json("orders", object())', "object", "encode it"),
        ("JSON from a body that is none", 'Message("orders", b"a book").json()', "b'a book'", "'orders'"),
        # -- sending --------------------------------------------------------------------------------------------------
        ("Bytes instead of a message", 'producer.send(b"a book")', "b'a book'", "Message("),
        ("An empty topic", 'producer.send(Message("", b"a book"))', "''", "letters"),
        ("A space in a topic", 'producer.send(Message("new orders", b"a book"))', "'new orders'", "letters"),
        ("Too large a message", 'producer.send(Message("orders", bytes(5_000_000)))', "5000000", "4194304"),
        ("A misspelled option", "Producer(name_servers, retrys=3)", "retrys", "retries"),
        ("An option of Kafka", 'Producer(bootstrap_servers="kafka:9092")', "bootstrap_servers", "name_servers"),
        ("A number in quotes", 'Producer(name_servers, retries="3")', "retries", "'3'", "without quotes"),
        ("A negative timeout", "Producer(name_servers, timeout_ms=-1)", "timeout_ms", "-1", "from 1"),
        ("A negative timeout of one send", "producer.send(message, timeout_ms=-1)", "timeout_ms", "-1", "from 1"),
        ("Batches of an idempotent producer", "Producer(idempotent=True, linger_ms=5)", "idempotent", "linger_ms"),
        ("A batch of two topics", 'producer.send_batch([message, Message("stock", b"")])', "'orders'", "'stock'"),
        ("A delay level that does not exist", "producer.send(message, delay_level=19)", "19", "1 to 18"),
        ("A negative delay", "producer.send(message, deliver_after_ms=-5)", "-5", "0 or more"),
        ("Two delays", "producer.send(message, deliver_after_ms=5, delay_level=1)", "deliver_after_ms", "delay_level"),
        ("A time without a zone", "producer.send(message, deliver_at=datetime(2030, 1, 1))", "2030", "time zone"),
        ("A delivery in years", "producer.send(message, deliver_at=in_ten_years)", "delay_horizon_ms"),
        ("A number as queue", "producer.send(message, queue=3)", "3", "QueueRef('orders'"),
        ("An unknown queue", 'producer.send(message, queue=QueueRef("orders", "sparrow", 9))', "9", "0 to 3"),
        ("A table with other columns", 'producer.send_table("orders", table)', "'text'", "body="),
        ("Table, no Arrow", 'with without("pyarrow"): producer.send_table("orders", table)', "pyarrow", "[tables]"),
        ("A send after close", "producer.close(); producer.send(message)", "the producer"),
        ("A send before open", "await aio.Producer(name_servers).send(message)", "the producer", "async with"),
        ("A coroutine function as work", "producer.send_in_transaction(message, later)", "later", "`def`"),
        ("A request that nobody answers", "producer.request(message, timeout_ms=100)", "'orders'", "100 ms"),
        # -- consuming ------------------------------------------------------------------------------------------------
        ("async def, blocking consumer", "consumer.start(later)", "later", "sparrow.aio"),
        ("async def, in order", "consumer.start(later, orderly=True)", "later", "sparrow.aio"),
        ("def, asyncio consumer", 'await aio.Consumer(group="billing").start(now)', "now", "`async def`"),
        ("The result of the handler", "consumer.start(now(message))", "None", "pass a function"),
        ("A handler with yield", "consumer.start(piecemeal)", "piecemeal", "yield"),
        ("No workers", "consumer.start(now, workers=0)", "workers", "0", "from 1"),
        ("start without subscribe", "consumer.start(now)", "call subscribe"),
        ("Iteration without subscribe", "next(consumer)", "call subscribe"),
        ("poll and start", 'consumer.subscribe("orders"); consumer.start(now); consumer.poll()', "start()"),
        ("A negative timeout of poll", "consumer.poll(timeout_ms=-1)", "timeout_ms", "-1", "from 0"),
        ("RocketMQ's mode", 'Consumer(group="billing", mode="broadcasting")', "'broadcasting'", "'broadcast'"),
        ("Kafka's position", 'Consumer(group="billing", consume_from="earliest")', "'earliest'", "'first'"),
        ("Kafka's option", 'Consumer(group="billing", auto_offset_reset="earliest")', "auto_offset", "consume_from"),
        ("A space in the name of a group", 'Consumer(group="my group")', "'my group'", "letters"),
        ("Part of a millisecond", 'Consumer(group="billing", commit_interval_ms=0.5)', "0.5", "whole number"),
        ("A prefetch of nothing", "Prefetch(count_max=0)", "count_max", "0", "from 1"),
        ("No invisible time", 'PopConsumer(group="billing", invisible_ms=0)', "invisible_ms", "0", "from 1"),
        ("A retry at once", "raise RetryLater(0)", "0", "1 to 18"),
        ("A list of topics", 'consumer.subscribe(["orders", "stock"])', "['orders', 'stock']", "one text"),
        ("A list of tags in a filter", 'consumer.subscribe("orders", ["paid"])', "['paid']", "'paid || shipped'"),
        ("Half a condition", 'consumer.subscribe("orders", "city =", expression_type="SQL92")', "city =", "position"),
        ("A condition as a tag", "consumer.subscribe('orders', \"city = 'Oslo'\")", "city = ", "'SQL92'"),
        ("A kind of filter that is none", 'consumer.subscribe("orders", "a.*", expression_type="RE")', "'RE'", "SQL92"),
        ("A topic that does not exist", 'consumer.subscribe("ordrs"); consumer.start(now)', "'ordrs'", "'orders'"),
        ("A queue of another member", 'consumer.seek(QueueRef("orders", "sparrow", 0), 5)', "orders"),
        (
            "Two filters in one group",
            'consumer.subscribe("orders", "a"); consumer.start(now); other.subscribe("orders", "b"); other.start(now)',
            "orders (a)",
            "orders (b)",
            "billing",
        ),
        # -- addresses and tokens -------------------------------------------------------------------------------------
        ("Nobody listens", "Producer(nobody, retries=0).send(message)", "{nobody}", "check the address"),
        ("Nobody listens, consumer", 'lost.subscribe("orders"); lost.start(now)', "{nobody}", "check the address"),
        ("The port of the broker", "Producer(broker).send(message)", "{broker}", "9876"),
        ("The port of the broker, consumer", 'astray.subscribe("orders"); astray.start(now)', "{broker}", "9876"),
        ("The port of something else", "Producer(other_server, timeout_ms=300).send(message)", "{other_server}"),
        ("No port", 'Producer("127.0.0.1").send(message)', "'127.0.0.1'", ":9876"),
        ("A URL", 'Producer("http://127.0.0.1:9876").send(message)', "http://127.0.0.1:9876", "without http://"),
        ("A list of addresses", 'Producer(["127.0.0.1:9876"])', "['127.0.0.1:9876']", "one text"),
        ("A host that does not exist", 'Producer("mq.invalid:9876", retries=0).send(message)', "mq.invalid"),
        ("No token", "Producer(guarded, retries=0).send(message)", "requires a token"),
        ("An unknown token", "Producer(guarded, credentials=guess).send(message)", "'shop'", "access key"),
        ("An unknown token, consumer", 'stranger.subscribe("orders"); stranger.start(now)', "'shop'", "access key"),
        ("A token as text", 'Producer(name_servers, credentials="secret")', "credentials", "Credentials"),
        ("A kind of token that is none", 'operator.issue_token("shop", "write")', "'write'", "p for producing"),
        # -- topics and groups ----------------------------------------------------------------------------------------
        ("A slash in the name of a topic", 'admin.create_topic("orders/2026")', "'orders/2026'", "letters"),
        ("A topic without queues", 'admin.create_topic("stock", queues=0)', "'stock'", "0", "1 to 65536"),
        ("An unknown cluster", 'admin.create_topic("stock", cluster="live")', "'live'", "DefaultCluster"),
        ("Offsets of an unknown group", 'admin.reset_offsets("bill", "orders", "first")', "'bill'", "'billing'"),
        ("Offsets of an unknown topic", 'admin.reset_offsets("billing", "ordrs", "first")', "'ordrs'"),
        ("Kafka's reset", 'admin.reset_offsets("billing", "orders", "earliest")', "'earliest'", "'first'"),
        ("A redrive of nothing", 'admin.redrive("billing")', "everything=True"),
        ("A key as message id", 'admin.find_by_id("order-7")', "'order-7'", "give the topic"),
        # -- event bus ------------------------------------------------------------------------------------------------
        ("A file as database", 'EventBus("orders.db")', "'orders.db'", "sqlite:///orders.db"),
        ("A database that is not supported", 'EventBus("oracle://db/shop")', "'oracle'", "postgresql://"),
        ("A folder that does not exist", 'EventBus("sqlite:////no/such/shop.db").start()', "/no/such", "create"),
        ("No driver", 'with without("asyncpg"): EventBus("postgresql://db/shop").start()', "asyncpg", "pip install"),
        ("Broker, no scheme", 'EventBus("sqlite:///shop.db", "127.0.0.1:9876")', "'127.0.0.1:9876'", "sparrow://"),
        ("An unknown broker URL", 'EventBus("sqlite:///shop.db", "zeromq://mq")', "'zeromq://mq'", "sparrow://"),
        ("Misspelled, bus", 'EventBus("sqlite:///shop.db", topic_prefixx="x")', "topic_prefixx", "topic_prefix?"),
        ("publish before the tables exist", 'bus.publish("order.paid")', "tables", "bus.prepare()"),
        ("publish in autocommit", 'bus.prepare(); bus.publish("order.paid", session=autocommit)', "transaction"),
        ("A payload that is no JSON", 'bus.prepare(); bus.publish("order.paid", object())', "'order.paid'", "object"),
        ("A request before start", 'bus.request("price.of", "book")', "the bus", "start"),
        ("A request that nobody handles", 'bus.start(); bus.request("price.of", timeout=0.1)', "'price.of'", "0.1 s"),
        # -- Spark ----------------------------------------------------------------------------------------------------
        ("Kafka's servers", 'SourceOptions.parse({"kafka.bootstrap.servers": "k:9092"})', "kafka.", "'nameServers'"),
        ("Kafka's other options", 'SourceOptions.parse({"kafka.linger.ms": "5"})', "kafka.linger.ms", "remove it"),
        ("topic instead of subscribe", 'SourceOptions.parse({"topic": "orders"})', "'topic'", "'subscribe'"),
        ("Misspelled, Spark", 'SourceOptions.parse({"startingOffset": "1"})', "startingoffset", "startingOffsets"),
        ("A source without a topic", "SourceOptions.parse({})", "'subscribe'"),
        ("A delivery that does not exist", 'parse_sink_options({"delivery": "twice"})', "'twice'", "exactlyOnce"),
        # -- commands -------------------------------------------------------------------------------------------------
        ("A misspelled command", "$ sparrow brokr", "brokr", "broker"),
        ("A misspelled flag", "$ sparrow up --prot 10911", "--prot", "--port"),
        ("A port in use", "$ sparrow broker --port {broker_port}", "{broker}", "--port"),
        ("A data folder in use", "$ sparrow broker --port 0 --data {data}", "{data}", "stop that process"),
        ("A file as data folder", "$ touch data && sparrow up --data data", "data", "a file", "--data"),
        ("A misspelled setting", "$ echo 'broker.prot = 1' > sparrow.toml; sparrow up", "broker.prot", "broker.port"),
        ("Settings that are no TOML", "$ echo 'broker: 1' > sparrow.toml; sparrow up", "sparrow.toml", "Correct"),
        ("A misspelled variable", "$ SPARROW_BROKER__PROT=1 sparrow up", "SPARROW_BROKER__PROT", "broker.port"),
        ("No name server", "$ sparrow dlq list --name-servers {nobody}", "{nobody}", "sparrow up"),
        ("The broker as name server", "$ sparrow dlq list --name-servers {broker}", "{broker}", "9876"),
        ("Dead letters of no group", "$ sparrow dlq list biling -n {name_servers}", "'biling'", "'billing'"),
        ("A bus that does not exist", "$ sparrow bus worker shop:bus", "'shop:bus'", "PYTHONPATH"),
        ("A pipeline that does not exist", "$ sparrow pipeline validate orders.toml", "orders.toml", "check the path"),
        (
            "send_soon without close",
            "$ python -c \"import sparrow as s; s.Producer('{nobody}').send_soon(s.Message('orders', b''))\"",
            "1 message",
            "close",
        ),
    )
]


def now(message: Any) -> None:
    """Handle a message, or pretend to."""


async def later(message: Any) -> None:
    """Handle a message in a coroutine."""


def piecemeal(message: Any) -> Iterator[None]:
    yield


@contextmanager
def without(module: str) -> Iterator[None]:
    """Behave as if a package were not installed."""
    installed = sys.modules.pop(module, None)
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
        if installed is not None:
            sys.modules[module] = installed


class Names(dict[str, Any]):
    """The names that a mistake may use; those of clients and the like are made when they are used first."""

    def __init__(self, places: dict[str, str], folder: Path) -> None:
        super().__init__(places)
        name_servers, guarded, guess = places["name_servers"], places["guarded"], Credentials("shop", "a guess")
        database = f"sqlite:///{folder / 'shop.db'}"
        self._makers = {
            "message": lambda: Message("orders", b"a book"),
            "table": lambda: pa.table({"text": ["a book"]}),
            "in_ten_years": lambda: datetime.now(UTC) + timedelta(days=3650),
            "guess": lambda: guess,
            "producer": lambda: Producer(name_servers),
            "consumer": lambda: Consumer(name_servers, group="billing"),
            "other": lambda: Consumer(name_servers, group="billing"),
            "lost": lambda: Consumer(places["nobody"], group="billing"),
            "astray": lambda: Consumer(places["broker"], group="billing"),
            "stranger": lambda: Consumer(guarded, group="billing", credentials=guess),
            "admin": lambda: Admin(name_servers),
            "operator": lambda: Admin(guarded, credentials=OPERATOR),
            "bus": lambda: EventBus(database, "memory://"),
            "autocommit": lambda: create_engine(database, isolation_level="AUTOCOMMIT").connect(),
        }

    def __missing__(self, name: str) -> Any:
        self[name] = self._makers[name]()
        return self[name]

    def close(self) -> None:
        """Close what was made."""
        for made in self.values():
            if isinstance(made, EventBus):
                made.stop()
            elif hasattr(made, "close"):
                made.close()


class ClientWarnings(logging.Handler):
    """What clients and event buses log at WARNING."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: queue.SimpleQueue[str] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(("sparrow.client.", "sparrow.bus.")):
            self.texts.put(record.getMessage())


def run_code(mistake: Mistake, places: dict[str, str], warned: ClientWarnings) -> Answer:
    """Run Python code, and return what it raises, or else the first warning."""
    code = compile(mistake.code, "<mistake>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with tempfile.TemporaryDirectory() as folder:
        names = Names(places, Path(folder))
        warned.texts = queue.SimpleQueue()
        try:
            result = eval(code, globals(), names)
            if inspect.iscoroutine(result):
                asyncio.run(result)
            return Answer(mistake, warned.texts.get(timeout=SILENCE_MAX_S))
        except queue.Empty:
            return Answer(mistake, "")
        except Exception as error:
            return Answer(mistake, str(error), error)
        finally:
            names.close()


def run_command(mistake: Mistake, environment: dict[str, str]) -> Answer:
    """Run a command in a folder of its own, and return what it prints, without the frame and the usage."""
    with tempfile.TemporaryDirectory() as folder:
        command = mistake.code.removeprefix("$ ")
        with subprocess.Popen(
            command,
            shell=True,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                printed, _ = process.communicate(timeout=2 * SILENCE_MAX_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                printed = ""
    lines = [line.strip("│╭╮╰╯─ ") for line in printed.splitlines()]
    said = [line for line in lines if line and not line.startswith(("Usage:", "Try ", "Error"))]
    return Answer(mistake, "\n".join(said))


@contextmanager
def run_places() -> Iterator[dict[str, str]]:
    """Run two platforms, one of which wants tokens, and return the addresses and names that mistakes contain."""
    tokens = {OPERATOR.access_key: OPERATOR.secret_key}
    with (
        sparrow.testing.run_platform() as platform,
        sparrow.testing.run_platform(broker={"auth": True, "admin_tokens": tokens}) as guarded,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            unused_port = closed.getsockname()[1]
        with Producer(platform.name_servers) as producer, Consumer(platform.name_servers, group="billing") as consumer:
            producer.send(Message("orders", b"a book"))
            consumer.subscribe("orders")
            next(consumer)
        with Admin(guarded.name_servers, credentials=OPERATOR) as operator:
            operator.create_topic("orders")
        yield {
            "name_servers": platform.name_servers,
            "broker": platform.address,
            "broker_port": platform.address.rpartition(":")[2],
            "data": str(platform.folder),
            "guarded": guarded.name_servers,
            "other_server": f"127.0.0.1:{silent.getsockname()[1]}",
            "nobody": f"127.0.0.1:{unused_port}",
        }


def fill_in(mistake: Mistake, places: dict[str, str]) -> Mistake:
    """Replace `{broker}` and the like in a mistake."""

    def filled(text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: places[found[1]], text)

    code = filled(mistake.code) if mistake.code.startswith("$") else mistake.code
    return Mistake(mistake.title, code, tuple(map(filled, mistake.mentions)))


def make_mistakes() -> Iterator[Answer]:
    """Make all mistakes, and yield what Sparrow says."""
    warned, logger = ClientWarnings(), logging.getLogger("sparrow")
    logger.addHandler(warned)
    logger.propagate = False
    try:
        with run_places() as places, tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
            script = Path(folder, "sparrow")
            script.write_text(f"#!{sys.executable}\nfrom sparrow.cli.main import entry\n\nentry()\n")
            script.chmod(0o755)
            path = os.pathsep.join((folder, str(Path(sys.executable).parent), os.environ["PATH"]))
            environment = os.environ | {"PATH": path, "COLUMNS": "200", "SPARROW_NAME_SERVERS": places["name_servers"]}
            mistakes = [fill_in(mistake, places) for mistake in MISTAKES]
            commands = {
                mistake: pool.submit(run_command, mistake, environment)
                for mistake in mistakes
                if mistake.code.startswith("$")
            }
            for mistake in mistakes:
                running = commands.get(mistake)
                yield run_code(mistake, places, warned) if running is None else running.result()
    finally:
        logger.removeHandler(warned)
        logger.propagate = True


def print_answer(answer: Answer) -> None:
    """Print a mistake and the answer to it."""
    kind = f"{type(answer.error).__name__}: " if answer.error is not None else ""
    print(f"{answer.mistake.title}\n    {answer.mistake.code}\n  → {kind}{answer.text or 'nothing'}\n")


if __name__ == "__main__":
    for each in make_mistakes():
        print_answer(each)
    print(f"{len(MISTAKES)} mistakes")
