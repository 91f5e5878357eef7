"""Servers in separate processes that tests kill, stop and restart."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

from tests.support.databases import _free_port

from sparrow.net import Address

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120.0
"""How long a server may take to start: a busy machine needs a while."""
SMALL_LOG = {"SEGMENT_BYTES": 16 << 20, "WARM_BYTES": 0, "INDEX_SLOTS": 1024, "INDEX_ENTRIES": 4096}
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
    **{f"SPARROW_LOG__{name}": str(value) for name, value in SMALL_LOG.items()},
}


class BrokerProcess:
    """A broker that restarts on its port."""

    def __init__(
        self, name: str, folder: Path, name_servers: str, *, arguments: Sequence[str] = (), **settings: object
    ) -> None:
        """`arguments`: further words of the command line. The settings are those of the broker."""
        self.name, self._folder, self._name_servers, self._arguments = name, folder, name_servers, arguments
        self._environment = ENVIRONMENT | {
            f"SPARROW_BROKER__{key.upper()}": str(value) for key, value in settings.items()
        }
        self._port = _free_port()  # no outgoing connection can occupy it while the broker is down
        self._process: asyncio.subprocess.Process | None = None
        self.log: Path | None = None
        """The file that gets its log; None: stderr of this process."""

    async def start(self) -> None:
        words = ["--name", self.name, "--name-servers", self._name_servers]
        words += ["--port", str(self._port), "--data", str(self._folder), *self._arguments]
        with nullcontext() if self.log is None else self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sparrow", "broker", *words),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._environment,
                cwd=self._folder.parent,
            )
        said = self._process.stdout
        assert said is not None
        async with asyncio.timeout(TIMEOUT_S):
            while not (line := (await said.readline()).decode()).startswith("ready"):
                assert line, f"broker {self.name} ended unexpectedly"

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self._port)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        """Kill the broker without a shutdown."""
        self.signal(signal.SIGKILL)
        assert self._process is not None
        await self._process.wait()

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self.signal(signal.SIGCONT)
            await self.kill()


@asynccontextmanager
async def server_process(*words: str, ready: str = "ready", **environment: str) -> AsyncIterator[list[str]]:
    """Run `sparrow ...` until it is ready, kill it on exit; yield its output until it was ready.

    `ready`: how the line begins that it prints then.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sparrow", *words), stdout=asyncio.subprocess.PIPE, env=ENVIRONMENT | environment
    )
    try:
        assert process.stdout is not None
        said: list[str] = []
        async with asyncio.timeout(TIMEOUT_S):
            while not said or not said[-1].startswith(ready):
                line = await process.stdout.readline()
                assert line, said
                said.append(line.decode().strip())
        yield said
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def broker_process(
    name: str, folder: Path, name_servers: str, *, arguments: Sequence[str] = (), **settings: object
) -> AsyncIterator[BrokerProcess]:
    """Run a broker inside the context and kill it on exit. `settings` are those of `BrokerSettings`."""
    folder.mkdir(parents=True, exist_ok=True)
    broker = BrokerProcess(name, folder, name_servers, arguments=arguments, **settings)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()
