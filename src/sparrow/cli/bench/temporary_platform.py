"""A platform for one benchmark: a name server here, a broker in a process of its own, data in a temporary folder."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sparrow.model.errors import Unavailable
from sparrow.settings import NameServerSettings

_STOP_S = 20.0


@asynccontextmanager
async def temporary_platform() -> AsyncIterator[str]:
    """Run a platform on free ports, and yield the address of its name server."""
    from sparrow.nameserver.server import NameServer

    with tempfile.TemporaryDirectory(prefix="sparrow-bench-", ignore_cleanup_errors=True) as folder:
        async with NameServer(NameServerSettings(port=0)) as name_server:
            address = str(name_server.address)
            arguments = ("broker", "--name", "bench", "--port", "0", "--name-servers", address, "--data", folder)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sparrow", *arguments, "--stop-on-stdin-eof"),
                stdin=asyncio.subprocess.PIPE,  # closes when this process ends, however it ends
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            try:
                await _wait_ready(process)
                yield address
            finally:
                assert process.stdin is not None
                process.stdin.close()
                try:
                    await asyncio.wait_for(process.wait(), _STOP_S)
                except TimeoutError:
                    process.kill()
                    await process.wait()


async def _wait_ready(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        if line.startswith(b"ready"):
            return
    raise Unavailable(f"the temporary broker ended with code {await process.wait()} before it was ready")
