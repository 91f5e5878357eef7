"""Real RabbitMQ and Apache Kafka servers: private, on loopback, and ended with the process that started them.

    with rabbitmq_server() as server:
        transport = RabbitTransport(server.url)

They can be killed and restarted on their ports with their data, like the database servers. Debian has no Kafka, so
Maven fetches its jars, like those of RocketMQ; without Java or Maven the test is skipped.
"""

from __future__ import annotations

import fcntl
import signal
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.interop import official
from tests.support.databases import (
    Server,
    ServerNotInstalled,
    _free_port,
    _parent_death_prefix,
    _private_folder,
    _program,
    _run,
    _run_server,
)

PACKAGES = ("rabbitmq-server", "redis-server", "nats-server", "etcd-server")
"""The packages of every message broker and of etcd, so that one run of apt installs all."""
# Debian's program of this name on the PATH switches to its own user and folders.
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
    """A server that is ready when it answers a greeting; with an empty greeting, a connection is enough."""

    port: int = 0
    greeting: bytes = b""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), LOOK_TIMEOUT_S) as connection:
                connection.settimeout(LOOK_TIMEOUT_S)
                connection.sendall(self.greeting)
                return not self.greeting or bool(connection.recv(1))
        except OSError:
            return False


@contextmanager
def rabbitmq_server(folder: Path | None = None, **settings: object) -> Iterator[MessageBroker]:
    """Run a RabbitMQ server inside the context and remove it afterwards. `settings` are RabbitMQ's, in Erlang's syntax.

    The user is guest, with that password; the virtual host is `/`.
    """
    found = _program("rabbitmq-server", "RabbitMQ", PACKAGES)
    program = RABBITMQ if RABBITMQ.exists() else found
    port, distribution_port, names_port = _free_port(), _free_port(), _free_port()
    with _private_folder(folder, owner=None) as private:
        # Erlang would start its own name server (epmd), which would outlive the test.
        register = MessageBroker(
            f"epmd://127.0.0.1:{names_port}",
            private / "epmd",
            (*_parent_death_prefix(None), str(_program("epmd", "Erlang", PACKAGES)), "-port", str(names_port)),
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
            # Ignore settings of the machine's own server.
            **{f"RABBITMQ_{name}_FILE": private / "none" for name in ("CONF_ENV", "CONFIG", "ADVANCED_CONFIG")},
            # The script then replaces itself by the server and receives the signals directly.
            "RABBITMQ_ALLOW_INPUT": 1,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": " ".join(erlang),
        }
        server = MessageBroker(
            f"amqp://guest:guest@127.0.0.1:{port}/",
            private,
            (
                *_parent_death_prefix(None),
                "env",
                *(f"{name}={value}" for name, value in environment.items()),
                str(program),
            ),
            (),
            signal.SIGKILL,
            port=port,
            greeting=AMQP_GREETING,
        )
        with contextmanager(_run_server)(register):
            yield from _run_server(server)


@contextmanager
def kafka_server(
    folder: Path | None = None,
    *,
    jvm_flags: Sequence[str] = (*official.QUICK_START_FLAGS, f"-Xmx{KAFKA_HEAP_MB}m"),
    **settings: object,
) -> Iterator[MessageBroker]:
    """The same for Kafka, as one node that is its own controller. `settings` are the server's, with `_` for dots.

    It creates no topics automatically.
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
            # A killed node can only register again when its previous session has expired.
            "broker.session.timeout.ms": 2_000,
            "broker.heartbeat.interval.ms": 500,
            "log.cleaner.dedupe.buffer.size": 8 << 20,
        } | {name.replace("_", "."): value for name, value in settings.items()}
        properties = private / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in wanted.items()))
        java = (
            *("java", *jvm_flags, f"-Duser.home={private}"),
            *("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", f"-Djava.io.tmpdir={private}", "-cp", f"{jars}/*"),
        )
        _run(*java, "kafka.tools.StorageTool", "format", "-t", KAFKA_CLUSTER, "-c", str(properties))
        server = MessageBroker(
            f"kafka://127.0.0.1:{port}",
            private,
            (*_parent_death_prefix(None), *java, "kafka.Kafka", str(properties)),
            (),
            signal.SIGKILL,
            port=port,
            greeting=KAFKA_GREETING,
        )
        yield from _run_server(server)


def _kafka_jars() -> Path:
    """Fetch the jars once; skip the test where that is impossible."""
    official._need("java")
    folder = official.BUILD / f"kafka-{KAFKA_VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    jars = folder / f"jars-{official.fingerprint([KAFKA_POM])}"
    with open(folder / "lock", "w") as lock:  # two test processes may need the same jars
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.exists():
            official._need("mvn")
            with official.whole(jars) as unfinished:
                goal = ("dependency:copy-dependencies", f"-DoutputDirectory={unfinished}")
                words = ("mvn", "-q", "-B", "-f", str(KAFKA_POM), f"-Dkafka.version={KAFKA_VERSION}", *goal)
                output = official.run(words, official.FETCH_TIMEOUT_S)
                if output is not None:
                    official.unavailable(f"Maven could not fetch Kafka {KAFKA_VERSION}: {output[-500:]}")
    return jars


def prepare() -> None:
    """Install missing programs before any test's timeout runs; where that is not allowed, print the instructions."""
    try:
        for program in PACKAGES:
            _program("etcd" if program == "etcd-server" else program, program, PACKAGES)
    except ServerNotInstalled as missing:
        print(missing)


if __name__ == "__main__":
    prepare()
