"""The servers under attack: a name server, a broker and a console, each a process, and the honest client beside them.

Registrations must be signed, so that no attacker takes over routes. Everything else is open to anybody.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import psutil
from tests.hostile.honest_client import TOPIC, HonestClient, honest_client
from tests.support.server_processes import broker_process, server_process

from sparrow import Credentials, aio
from sparrow.net import Address

OPERATOR = Credentials("operator", "known to the operator alone")
TOKENS = json.dumps({OPERATOR.access_key: OPERATOR.secret_key})
_SAMPLE_S = 0.05
_ADDRESS = re.compile(r"(?<=127\.0\.0\.1:)\d+")


class Target:
    """The servers that an attack may reach."""

    def __init__(
        self, name_server: Address, broker: Address, console: Address, honest: HonestClient, *, hold_messages: int
    ) -> None:
        self.name_server, self.broker, self.console = name_server, broker, console
        self._honest, self._hold_messages = honest, hold_messages

    async def hold(self) -> None:
        """Keep the attack up until the honest client has sent and received enough messages beside it."""
        await self._honest.progress(self._hold_messages)


class ServerMemory:
    """The private memory of the servers: how much more than before an attack they needed at most."""

    def __init__(self, processes: dict[str, psutil.Process]) -> None:
        self._processes = processes
        self._before = {name: _private_bytes(process) for name, process in processes.items()}
        self.growth_bytes = dict.fromkeys(processes, 0)

    async def watch(self) -> None:
        """Take samples until cancelled."""
        while True:
            for name, process in self._processes.items():
                growth = _private_bytes(process) - self._before[name]
                self.growth_bytes[name] = max(self.growth_bytes[name], growth)
            await asyncio.sleep(_SAMPLE_S)


def _private_bytes(process: psutil.Process) -> int:
    """Return the resident memory without mapped files: segments of the log are no cost of an attack."""
    memory = process.memory_info()
    return memory.rss - memory.shared


class Siege:
    """The running servers, the honest client, and what a test needs to judge them."""

    def __init__(self, target: Target, honest: HonestClient, processes: dict[str, psutil.Process]) -> None:
        self.target, self.honest, self._processes = target, honest, processes

    def memory(self) -> ServerMemory:
        return ServerMemory(self._processes)

    def dead_servers(self) -> list[str]:
        return [name for name, process in self._processes.items() if process.status() == psutil.STATUS_ZOMBIE]


@asynccontextmanager
async def running_siege(folder: Path, *, hold_messages: int) -> AsyncIterator[Siege]:
    """Run the servers and the honest client, all of which are killed on exit."""
    async with AsyncExitStack() as stack:
        words = ("name-server", "--port", "0", "--data", str(folder / "name-server"))
        signed = {"SPARROW_NAME_SERVER__AUTH": "true", "SPARROW_NAME_SERVER__ADMIN_TOKENS": TOKENS}
        said = await stack.enter_async_context(server_process(*words, **signed))
        name_server = _address(said)
        broker = await stack.enter_async_context(
            broker_process("sparrow", folder / "broker", str(name_server), admin_tokens=TOKENS)
        )
        said = await stack.enter_async_context(
            server_process("console", "--port", "0", "--name-servers", str(name_server), ready="console")
        )
        console = _address(said)
        async with aio.Admin(str(name_server)) as admin:
            await admin.create_topic(TOPIC, 4)
        honest = await stack.enter_async_context(honest_client(str(name_server)))
        await honest.progress(1)
        target = Target(name_server, broker.address, console, honest, hold_messages=hold_messages)
        yield Siege(target, honest, _server_processes())


def _address(said: list[str]) -> Address:
    return Address("127.0.0.1", int(_ADDRESS.findall("".join(said))[-1]))


def _server_processes() -> dict[str, psutil.Process]:
    """Find the servers among the children of this process, by their command."""
    children = psutil.Process().children()
    return {
        name: process
        for name in ("name-server", "broker", "console")
        for process in children
        if name in process.cmdline()
    }
