"""Real Redis and NATS servers: private, on loopback, durable, and ended with the process that started them.

    with redis_server() as server:
        transport = RedisTransport(server.url)

They can be killed and restarted on their ports with their data, like the other servers of the tests.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.databases import _free_port, _parent_death_prefix, _private_folder, _program, _run_server
from tests.support.message_brokers import LOOK_TIMEOUT_S, PACKAGES, MessageBroker


@dataclass(eq=False)
class ReplyingServer(MessageBroker):
    """A server that is ready when it sends this greeting; before that it may listen and refuse every command."""

    expected_reply: bytes = b""

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), LOOK_TIMEOUT_S) as connection:
                connection.settimeout(LOOK_TIMEOUT_S)
                connection.sendall(self.greeting)
                return connection.recv(4_096).startswith(self.expected_reply)
        except OSError:
            return False


@contextmanager
def redis_server(folder: Path | None = None, **settings: object) -> Iterator[MessageBroker]:
    """Run Redis; every write is on disk before its response. `settings` are the server's, with `_` for `-`."""
    daemon = _program("redis-server", "Redis", PACKAGES)
    port = _free_port()
    with _private_folder(folder, owner=None) as private:
        wanted = {
            "bind": "127.0.0.1",
            "port": port,
            "dir": private,
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "daemonize": "no",
        }
        settled = {f"--{name.replace('_', '-')}": str(value) for name, value in (wanted | settings).items()}
        options = [word for setting in settled.items() for word in setting]
        server = ReplyingServer(
            f"redis://127.0.0.1:{port}",
            private,
            (*_parent_death_prefix(None), str(daemon), *options),
            (),
            signal.SIGKILL,
            port=port,
            greeting=b"PING\r\n",
            expected_reply=b"+PONG",
        )
        yield from _run_server(server)


@contextmanager
def nats_server(folder: Path | None = None, *, program: Path | None = None) -> Iterator[MessageBroker]:
    """Run NATS with JetStream, which keeps its streams in the server's folder; `program` is another than Debian's."""
    daemon = program or _program("nats-server", "NATS", PACKAGES)
    port = _free_port()
    with _private_folder(folder, owner=None) as private:
        options = ("--addr", "127.0.0.1", "--port", str(port), "--jetstream", "--store_dir", str(private / "data"))
        server = ReplyingServer(
            f"nats://127.0.0.1:{port}",
            private,
            (*_parent_death_prefix(None), str(daemon), *options),
            (),
            signal.SIGKILL,
            port=port,
            expected_reply=b"INFO ",
        )
        yield from _run_server(server)
