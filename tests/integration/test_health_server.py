"""`HealthServer`, blocking and asyncio: the answers to liveness and readiness probes over HTTP."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from datetime import UTC, datetime
from typing import Any

import pytest

import sparrow
from sparrow import aio
from sparrow.model.errors import CannotListen, Closed
from sparrow.model.health import Finding, Health

LOST = Finding("broker", "nobody listens on 127.0.0.1:1: start a broker", datetime(2026, 1, 2, tzinfo=UTC))


class Watched:
    """Something with a health that a test sets."""

    def __init__(self, *findings: Finding, ok: bool = True) -> None:
        self.state = Health(ok, findings)

    def health(self) -> Health:
        return self.state


def get(port: int, path: str, method: str = "GET") -> tuple[int, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            body = answer.read()
            return answer.status, json.loads(body) if body else None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")


def test_probes_of_a_blocking_program_get_the_findings() -> None:
    good, other = Watched(), Watched()
    with sparrow.HealthServer(good, other, host="127.0.0.1", port=0) as server:
        assert server.address == f"127.0.0.1:{server.port}"
        assert get(server.port, "/live") == (200, {"live": True})
        assert get(server.port, "/ready?verbose") == (200, {"ready": True, "findings": []})
        assert get(server.port, "/ready", "HEAD") == (200, None)
        other.state = Health(False, (LOST,))
        shown = {"cause": "broker", "text": LOST.text, "since": "2026-01-02T00:00:00Z"}
        assert get(server.port, "/ready") == (503, {"ready": False, "findings": [shown]})
        assert get(server.port, "/live") == (200, {"live": True}), "a restart would not help"
        other.state = Health(True, (LOST,))
        assert get(server.port, "/ready") == (200, {"ready": True, "findings": [shown]})
        status, refusal = get(server.port, "/health")
        assert status == 404
        assert refusal["error"].startswith("there is no /health: use one of ")
        assert {"/live", "/ready", "/metrics"} <= set(refusal["error"].replace(",", "").split())
        assert get(server.port, "/ready", "POST") == (405, {"error": "POST is not allowed: use GET"})
    with pytest.raises(Closed):
        _ = server.port


async def test_server_runs_on_the_event_loop_and_survives_bad_requests() -> None:
    async with aio.HealthServer(Watched(), host="127.0.0.1", port=0) as server:
        for bad in (b"", b"\x00\xff\r\n\r\n", b"GET /" + b"x" * 100_000):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(bad)
            writer.write_eof()
            await reader.read()
            writer.close()
        assert await asyncio.to_thread(get, server.port, "/ready") == (200, {"ready": True, "findings": []})
        with pytest.raises(CannotListen, match=f"cannot listen on 127.0.0.1:{server.port}"):
            await aio.HealthServer(host="127.0.0.1", port=server.port).open()


def test_blocking_server_reports_a_port_that_is_taken_too() -> None:
    with sparrow.HealthServer(host="127.0.0.1", port=0) as server:
        with pytest.raises(CannotListen):
            sparrow.HealthServer(host="127.0.0.1", port=server.port).open()
