"""An etcd of one member on this machine, for trying a replica set."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sparrow.model.errors import SparrowError

CLIENT_PORT = 2379
_START_S = 30.0
_STOP_S = 10.0
HOW_TO_INSTALL = (
    "a replica set needs etcd, and there is none on the PATH. Install it (Debian, Ubuntu: `apt-get install "
    "etcd-server`; macOS: `brew install etcd`; others: https://etcd.io/docs/latest/install/), or name the endpoints of "
    "one that runs with --etcd."
)


@asynccontextmanager
async def local_etcd(folder: Path) -> AsyncIterator[str]:
    """Run the etcd that is on the PATH, with its data in a folder; yield its endpoint."""
    program = shutil.which("etcd")
    if program is None:
        raise SparrowError(HOW_TO_INSTALL)
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    client, peer = f"http://127.0.0.1:{_free_port(CLIENT_PORT)}", f"http://127.0.0.1:{_free_port()}"
    log = folder / "etcd.log"
    with log.open("ab") as output:
        # A session of its own: Ctrl-C reaches only this process, which stops etcd after the brokers.
        process = await asyncio.create_subprocess_exec(
            *(program, "--name=local", f"--data-dir={folder / 'data'}"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=local={peer}"),
            "--auto-compaction-retention=1",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        await _wait_ready(process, client, log)
        yield client
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _STOP_S)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _wait_ready(process: asyncio.subprocess.Process, endpoint: str, log: Path) -> None:
    import httpx

    async with httpx.AsyncClient(timeout=1, trust_env=False) as client, asyncio.timeout(_START_S):
        while True:
            if process.returncode is not None:
                raise SparrowError(f"etcd exited with code {process.returncode}: see {log}")
            try:
                if (await client.get(f"{endpoint}/health")).json().get("health") == "true":
                    return
            except (httpx.HTTPError, ValueError):
                pass
            await asyncio.sleep(0.05)


def _free_port(wanted: int = 0) -> int:
    """Return a free port, the wanted one if it is free."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise SparrowError("no free port is left on 127.0.0.1")
