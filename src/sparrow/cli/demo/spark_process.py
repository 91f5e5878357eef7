"""Spark beside the demo: a process that is started, listened to, and gone when the demo is.

A process, because Java writes to the terminal, and Python's half of Spark holds up an event loop. What it prints is in
`spark.log`, its progress in `checkpoint`, both in a folder of the demo's data; a second run goes on from there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from sparrow.cli.demo.revenue_pipeline import SparkStatus

STOP_TIMEOUT_S = 15.0
"""How long it may take to stop in order: a batch is finished, and Java tidies up."""


class SparkProcess:
    """`async with SparkBeside(name_servers, folder) as spark:` and `spark.word` says how far it is."""

    def __init__(self, name_servers: str, folder: Path) -> None:
        self._name_servers, self._folder = name_servers, folder.resolve()
        self.log_path = folder / "spark.log"
        self.word = SparkStatus(state="starting")
        self._process: asyncio.subprocess.Process
        self._listening: asyncio.Task[None]

    async def __aenter__(self) -> SparkProcess:
        self._folder.mkdir(parents=True, exist_ok=True)
        program = (sys.executable, "-m", "sparrow.cli.demo.revenue_pipeline")
        with (self._folder / "spark.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*program, self._name_servers, str(self._folder / "checkpoint")),
                stdin=asyncio.subprocess.PIPE,  # nothing is said; it closes when we die, however we die
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches us alone, and Java is in a group that can be ended
            )
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self._process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        # What was still starting when its parent left, or would not stop. A batch cut short is done again, once.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._listening

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.word = msgspec.json.decode(line, type=SparkStatus)
        if self.word.state != "failed":
            code = await self._process.wait()
            self.word = SparkStatus(state="failed", why=f"it left with code {code}; {self.log_path} may say why")
