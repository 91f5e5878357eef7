"""Official Java clients as senders of a `SendHistory`: one process each, which prints what its client was told."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.fault.send_history import TOPIC, SendHistory
from tests.interop import official

VERSIONS = ("4.9.7", "5.5.0")
END_S = 60.0
"""How long a process may take to finish its last send."""


class JavaSender:
    """One process. Its lines are read into the history as they come."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, history: SendHistory) -> None:
        self.name, self._process, self._history = name, process, history
        self._has_ended = False
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            word, _, rest = line.decode().strip().partition(" ")
            match word:
                case "tried":
                    self._history.tried(self.name)
                case "acknowledged":
                    queue, offset, body = rest.split()
                    self._history.told(body.encode(), (int(queue), int(offset)))
                case "failed":
                    self._history.failed(f"Java: {rest}")
                case "over":
                    self._has_ended = True

    @property
    def acknowledged(self) -> int:
        return self._history.confirmed[self.name]

    async def stop(self) -> None:
        """Let the process finish its last send, and end; every line of it is then in the history."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(END_S):
            await self._reading
            await self._process.wait()
        assert self._has_ended, f"{self.name} ended before it was told to"

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._reading.cancel()


def available_kits() -> list[official.Kit]:
    """Return the jars of each version; none, with a warning that says why, where Java or Maven is missing."""
    try:
        return [official.kit(version) for version in VERSIONS]
    except pytest.skip.Exception as missing:
        warnings.warn(f"no Java clients among the senders: {missing}", stacklevel=2)
        return []


@asynccontextmanager
async def java_senders(
    kits: list[official.Kit], name_servers: str, folder: Path, history: SendHistory
) -> AsyncIterator[list[JavaSender]]:
    """Start a sender for each kit; end what still runs."""
    senders: list[JavaSender] = []
    try:
        for kit in kits:
            name, home = f"java_{kit.version}".replace(".", "_"), folder / f"java-{kit.version}"
            home.mkdir()
            with (home / "errors.log").open("wb") as errors:
                process = await asyncio.create_subprocess_exec(
                    *kit.command("NumberedSends", name_servers, TOPIC, name, user_home=home, heap_mb=128),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors,
                    cwd=home,
                )
            senders.append(JavaSender(name, process, history))
        yield senders
    finally:
        for sender in senders:
            await sender.kill()
