"""TCP proxies that cut connections: after a request whose answer is lost, or at random bytes."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from threading import Thread


class ForwardingProxy:
    """Forwards connections to a server on this machine."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                Thread(target=self._forward, args=(client, server), daemon=True).start()
                Thread(target=self._answer, args=(server, client), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError), server:
            while data := client.recv(1 << 16):
                server.sendall(data)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError), client:
            while data := server.recv(1 << 16):
                client.sendall(data)


class CuttingProxy(ForwardingProxy):
    """Loses answers: it forwards a request, waits for the answer, and cuts the connection.

    `cuts` is how many answers to requests that match a pattern it still loses.
    """

    def __init__(self, port: int, pattern: bytes) -> None:
        self.cuts, self._pattern = 0, re.compile(pattern)
        super().__init__(port)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError), server:
            while data := client.recv(1 << 16):
                if self.cuts and self._pattern.search(data):
                    self.cuts -= 1
                    with suppress(OSError):
                        client.shutdown(socket.SHUT_WR)  # no answer passes any more
                    server.sendall(data)
                    server.recv(1 << 16)  # the server has done it
                    client.close()
                    return
                server.sendall(data)


class ByteCuttingProxy(ForwardingProxy):
    """Ends each connection after a random number of the server's bytes, while `cuts` is above 0.

    Half of the cuts come within the first 100 bytes: inside a head, or inside the first record.
    """

    def __init__(self, port: int, seed: int, *, cuts: int) -> None:
        self.cuts, self._random = cuts, Random(seed)
        super().__init__(port)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        left: int | None = None
        if self.cuts > 0:
            left = self._random.randrange(100) if self._random.random() < 0.5 else self._random.randrange(200_000)
        with suppress(OSError), client, server:
            while data := server.recv(1 << 16):
                if left is not None and len(data) >= left:
                    self.cuts -= 1
                    client.sendall(data[:left])
                    return
                client.sendall(data)
                left = None if left is None else left - len(data)


@contextmanager
def cutting_proxy(port: int, pattern: bytes) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(port, pattern)
    try:
        yield proxy
    finally:
        proxy.close()


@contextmanager
def byte_cutting_proxy(port: int, seed: int, *, cuts: int) -> Iterator[ByteCuttingProxy]:
    proxy = ByteCuttingProxy(port, seed, cuts=cuts)
    try:
        yield proxy
    finally:
        proxy.close()
