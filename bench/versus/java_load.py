"""The official Java client as a load generator: one warm JVM serves both sides of a comparison in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
from bench.versus.peers.peer import missing_programs
from tests.interop import official
from tests.interop.java import JavaClient, client_process

CLIENT_VERSION = "5.5.0"
HEAP_MB = 512
ANSWER_TIMEOUT_S = 900
"""Longer than any command takes: `consume` has a limit of its own."""
SOURCE = Path(__file__).parent / "java" / "Load.java"
Headers = Literal["JSON", "ROCKETMQ"]
"""How the client writes the headers of its requests: as text, or in RocketMQ's binary form."""


class LoadResult(msgspec.Struct, frozen=True, rename="camel"):
    messages: int
    seconds: float
    p50_ms: float = 0.0
    """Of the sends, or from a send to its receipt; a consumer of a backlog has none."""
    p99_ms: float = 0.0


class JavaLoad:
    """A JVM that executes one command of Load.java at a time."""

    def __init__(self, client: JavaClient) -> None:
        self._client = client

    def run(self, command: str, address: str, topic: str, **fields: object) -> LoadResult:
        answer = self._client.order(command, address=address, topic=topic, **fields)
        return msgspec.convert(answer, LoadResult)

    def disconnect(self, address: str) -> None:
        """End the connections to a server that is about to stop."""
        self._client.order("disconnect", address=address)


@contextmanager
def java_load(folder: Path, headers: Headers) -> Iterator[JavaLoad]:
    """Run the JVM inside the context; raise `PeerMissing` where Java or the jars cannot be had."""
    folder.mkdir(parents=True)
    with missing_programs():
        kit = official.kit(CLIENT_VERSION, more_sources=[SOURCE])
    flags = (f"-Drocketmq.serialize.type={headers}", "-Djava.net.preferIPv4Stack=true")
    command = kit.command("Load", user_home=folder, heap_mb=HEAP_MB, jvm_flags=flags)
    with client_process(command, folder) as process:
        client = JavaClient(process, kit.version)
        client.answer_timeout_s = ANSWER_TIMEOUT_S
        yield JavaLoad(client)
