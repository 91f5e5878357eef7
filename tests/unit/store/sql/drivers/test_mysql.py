"""Connections to MySQL and MariaDB that fail while they are opened."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time

import pytest

from sparrow.store.sql.drivers.database import open_database
from sparrow.store.sql.drivers.errors import StoreDatabaseUnreachable

uvloop = pytest.importorskip("uvloop")
ATTEMPTS = 20


def reset_connections(listener: socket.socket) -> None:
    """Accept and reset connections, as a load balancer does whose database is down."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # the listener was closed
            return
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


def test_a_connection_that_is_reset_at_once_means_an_unreachable_database() -> None:
    """A busy event loop notices the reset before the driver uses the connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=reset_connections, args=(listener,), daemon=True).start()

    async def connect() -> None:
        loop = asyncio.get_running_loop()

        def spin() -> None:
            nonlocal spinning
            time.sleep(0.0005)  # the work of other clients, in each iteration of the loop
            spinning = loop.call_soon(spin)

        spinning = loop.call_soon(spin)
        for _ in range(ATTEMPTS):
            with pytest.raises(StoreDatabaseUnreachable):
                await open_database(f"mysql://root@127.0.0.1:{listener.getsockname()[1]}/db", connections_max=2)
        spinning.cancel()

    with listener:
        uvloop.run(connect())
