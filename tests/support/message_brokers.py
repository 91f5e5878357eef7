"""Real RabbitMQ and Apache Kafka servers: private, on loopback, and gone when the process that started them is.

    with rabbitmq_server() as server:
        transport = RabbitTransport(server.url)

They can be killed and come back on their ports, with their data, as the database servers do. Debian has no Kafka, so
its jars come by Maven, as those of RocketMQ do; without Java or Maven the test is skipped.
"""

from __future__ import annotations

import fcntl
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.interop import official
from tests.support.databases import (
    NoServer,
    Server,
    _free_port,
    _guarded,
    _private_folder,
    _program,
    _run,
    _running,
)

PACKAGES = ("rabbitmq-server", "redis-server", "nats-server")
"""Of every message broker the tests know, so that one run of apt gets them all."""
# Debian's program of this name on the PATH changes to a user of its own, and that one's folders.
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
KAFKA_VERSION = "4.1.0"
KAFKA_POM = official.SOURCES / "kafka" / "pom.xml"
KAFKA_HEAP_MB = 384
KAFKA_CLUSTER = "c3BhcnJvdy10ZXN0cy0wMQ"
LOOK_TIMEOUT_S = 2.0

AMQP_GREETING = b"AMQP\x00\x00\x09\x01"
# ApiVersions, version 0: key 18, correlation 1, no client id.
KAFKA_GREETING = struct.pack(">ihhih", 10, 18, 0, 1, -1)


@dataclass(eq=False)
class MessageBroker(Server):
    """A server that answers a greeting once it is up; with an empty one, a connection is enough."""

    port: int = 0
    greeting: bytes = b""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), LOOK_TIMEOUT_S) as connection:
                connection.settimeout(LOOK_TIMEOUT_S)
                connection.sendall(self.greeting)
                return not self.greeting or bool(connection.recv(1))
        except OSError:
            return False


@contextmanager
def rabbitmq_server(folder: Path | None = None, **settings: object) -> Iterator[MessageBroker]:
    """Running when entered, removed when left. `settings` are RabbitMQ's own, as Erlang writes them.

    The user is guest, with that password; the virtual host is `/`.
    """
    found = _program("rabbitmq-server", "RabbitMQ", PACKAGES)
    program = RABBITMQ if RABBITMQ.exists() else found
    port, distribution_port, names_port = _free_port(), _free_port(), _free_port()
    with _private_folder(folder, owner=None) as private:
        # Erlang starts its register of names by itself, and that one would outlive all of this.
        register = MessageBroker(
            f"epmd://127.0.0.1:{names_port}",
            private / "epmd",
            (*_guarded(None), str(_program("epmd", "Erlang", PACKAGES)), "-port", str(names_port)),
            (),
            signal.SIGKILL,
            port=names_port,
        )
        register.folder.mkdir()
        (private / "plugins").write_text("[].")
        erlang = ("-noinput", "-kernel inet_dist_use_interface {127,0,0,1}")
        erlang += tuple(f"-rabbit {name} {value}" for name, value in settings.items())
        environment = {
            "HOME": private,  # of the cookie
            "ERL_EPMD_PORT": names_port,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"sparrow{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": port,
            "RABBITMQ_DIST_PORT": distribution_port,
            "RABBITMQ_MNESIA_BASE": private / "data",
            "RABBITMQ_LOG_BASE": private / "logs",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": private / "plugins",
            # Settings of the machine's own server are not for this one.
            **{f"RABBITMQ_{name}_FILE": private / "none" for name in ("CONF_ENV", "CONFIG", "ADVANCED_CONFIG")},
            # So the script becomes the server, instead of standing between it and our signals.
            "RABBITMQ_ALLOW_INPUT": 1,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": " ".join(erlang),
        }
        server = MessageBroker(
            f"amqp://guest:guest@127.0.0.1:{port}/",
            private,
            (*_guarded(None), "env", *(f"{name}={value}" for name, value in environment.items()), str(program)),
            (),
            signal.SIGKILL,
            port=port,
            greeting=AMQP_GREETING,
        )
        with contextmanager(_running)(register):
            yield from _running(server)


@contextmanager
def kafka_server(folder: Path | None = None, **settings: object) -> Iterator[MessageBroker]:
    """The same for Kafka, as one node that is its own controller. `settings` are the server's, with `_` for dots.

    It makes no topics by itself.
    """
    jars = _kafka_jars()
    port, controller_port = _free_port(), _free_port()
    with _private_folder(folder, owner=None) as private:
        wanted = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "log.dirs": private / "data",
            "auto.create.topics.enable": "false",
            "num.partitions": 3,
            "offsets.topic.num.partitions": 3,
            "offsets.topic.replication.factor": 1,
            "group.initial.rebalance.delay.ms": 0,
            # A node that was killed may only come back when its last life is over.
            "broker.session.timeout.ms": 2_000,
            "broker.heartbeat.interval.ms": 500,
            "log.cleaner.dedupe.buffer.size": 8 << 20,
        } | {name.replace("_", "."): value for name, value in settings.items()}
        properties = private / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in wanted.items()))
        java = (
            *("java", *official._JVM_FLAGS, f"-Xmx{KAFKA_HEAP_MB}m", f"-Duser.home={private}"),
            *("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", f"-Djava.io.tmpdir={private}", "-cp", f"{jars}/*"),
        )
        _run(*java, "kafka.tools.StorageTool", "format", "-t", KAFKA_CLUSTER, "-c", str(properties))
        server = MessageBroker(
            f"kafka://127.0.0.1:{port}",
            private,
            (*_guarded(None), *java, "kafka.Kafka", str(properties)),
            (),
            signal.SIGKILL,
            port=port,
            greeting=KAFKA_GREETING,
        )
        yield from _running(server)


def _kafka_jars() -> Path:
    """Fetched once; skips the test where that cannot be done."""
    official._need("java")
    folder = official.BUILD / f"kafka-{KAFKA_VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    jars = folder / f"jars-{official._fingerprint([KAFKA_POM])}"
    with open(folder / "lock", "w") as lock:  # two test processes may want the same jars
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.exists():
            official._need("mvn")
            with official._whole(jars) as unfinished:
                goal = ("dependency:copy-dependencies", f"-DoutputDirectory={unfinished}")
                words = ("mvn", "-q", "-B", "-f", str(KAFKA_POM), f"-Dkafka.version={KAFKA_VERSION}", *goal)
                output = official._run(words, official.FETCH_TIMEOUT_S)
                if output is not None:
                    official.unavailable(f"Maven could not fetch Kafka {KAFKA_VERSION}: {output[-500:]}")
    return jars


def prepare() -> None:
    """Install what is missing before any test's time runs; where that is not allowed, say how it is done."""
    try:
        for program, name in (("rabbitmq-server", "RabbitMQ"), ("redis-server", "Redis"), ("nats-server", "NATS")):
            _program(program, name, PACKAGES)
    except NoServer as missing:
        print(missing)


if __name__ == "__main__":
    prepare()
