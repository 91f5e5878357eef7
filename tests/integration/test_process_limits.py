"""Limits and secrets of server processes: descriptors, command lines, and reads on a full disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.broker_client import BrokerClient, running_broker_client
from tests.support.server_processes import ROOT

from sparrow.model.errors import SettingsError
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.net import Address, connect
from sparrow.net.limits.descriptors import LIMIT_MIN, prepare_descriptors
from sparrow.store.log import LogStore
from sparrow.wire import bodies, headers
from sparrow.wire.bodies import ConsumerData, HeartbeatData, SubscriptionData
from sparrow.wire.codes import RequestCode, ResponseCode

LIMIT = 128
BROKER = """
import asyncio, logging, sys
from sparrow.broker.server import BrokerServer
from sparrow.settings import BrokerSettings, LogSettings

LOG = LogSettings(segment_bytes=1 << 20, warm_bytes=0, index_slots=1024, index_entries=4096, queue_file_entries=1000)

async def main():
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    async with BrokerServer(BrokerSettings(port=0), sys.argv[1], LOG) as server:
        print(server.address.port, flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            try:
                await asyncio.to_thread(server.broker.store._maintenance.checkpoint)
                print("written", flush=True)
            except OSError as error:
                print(error, flush=True)

asyncio.run(main())
"""


def limit_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))


@contextlib.contextmanager
def limited_broker(folder: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        [sys.executable, "-c", BROKER, str(folder / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=open(folder / "stderr", "w"),
        text=True,
        env=environment,
        preexec_fn=limit_descriptors,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


async def test_connections_leave_descriptors_for_the_files_of_the_store(tmp_path: Path) -> None:
    """A flood of connections takes every descriptor it gets; queue and index files are written all the same."""
    with limited_broker(tmp_path) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        port = int(await asyncio.to_thread(child.stdout.readline))
        honest = await connect(Address("127.0.0.1", port))
        flood = []
        try:
            for _ in range(2 * LIMIT):
                flood.append(socket.create_connection(("127.0.0.1", port), timeout=30))
            for number in range(8):
                header = headers.SendMessageV2(
                    "p", "T", "TBW102", 8, number, 0, 1, 0, f"KEYS\x01k{number}\x02", reconsume_times=0
                )
                sent = await honest.request(RequestCode.SEND_MESSAGE_V2, header, b"body", timeout_ms=30_000)
                assert sent.code == ResponseCode.SUCCESS, sent.remark
            child.stdin.write("\n")
            child.stdin.flush()
            assert await asyncio.to_thread(child.stdout.readline) == "written\n"
            assert psutil.Process(child.pid).num_fds() < LIMIT
        finally:
            for connection in flood:
                connection.close()
            honest.close()
    said = (tmp_path / "stderr").read_text()
    assert f"the limit of open files is {LIMIT}" in said
    assert "too few file descriptors are left" in said
    assert "Too many open files" not in said


def test_a_limit_that_is_too_low_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (LIMIT_MIN - 1, LIMIT_MIN - 1))
    with pytest.raises(SettingsError, match=r"the limit of open files = 63 .* at least 64; raise it with `ulimit -n`"):
        prepare_descriptors(1000)


def test_the_soft_limit_is_raised_as_far_as_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert prepare_descriptors(65_536) == 4096 - 256
    assert asked == [(4096, 4096)]


def test_the_url_of_the_database_is_not_on_the_command_line_of_shards(tmp_path: Path) -> None:
    """Every user of the machine can read command lines, and the URL may have a password."""
    words = ["up", "--shards", "2", "--name-server-port", "0", "--port", "0", "--no-console"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "SPARROW_BROKER__STORE": f"sqlite:///{tmp_path}/password-in-it.db",
    }
    command = [sys.executable, "-m", "sparrow", *words]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=environment) as child:
        try:
            assert child.stdout is not None
            for line in child.stdout:
                if "Ctrl-C" in line:
                    break
            shards = psutil.Process(child.pid).children()
            assert len(shards) == 2
            for shard in shards:
                arguments = Path(f"/proc/{shard.pid}/cmdline").read_bytes()
                assert b"broker" in arguments
                assert b"password-in-it" not in arguments
                assert b"password-in-it" in Path(f"/proc/{shard.pid}/environ").read_bytes()
        finally:
            child.kill()
    assert (tmp_path / "password-in-it.db").exists()


async def test_on_a_full_disk_a_new_group_can_read(tmp_path: Path) -> None:
    async with running_broker_client(tmp_path) as client:
        store = client.broker.store
        assert isinstance(store, LogStore)
        await client.broker.topics.put(Topic(name="T"))
        await client.send(Queue("T", 0), b"before")
        store._maintenance._disk_ratio = lambda _: 0.99
        await asyncio.to_thread(store._maintenance.watch_disk)
        header = headers.SendMessageV2("p", "T", "TBW102", 4, 0, 0, 1, 0, "")
        refused = await client.request(RequestCode.SEND_MESSAGE_V2, header, b"refused")
        assert refused.code != ResponseCode.SUCCESS

        consumer = ConsumerData("fresh", subscription_data_set=[SubscriptionData("T", sub_version=1)])
        heartbeat = bodies.write(HeartbeatData("one", consumer_data_set=[consumer]))
        await client.request_ok(RequestCode.HEART_BEAT, headers.Heartbeat(), heartbeat)
        await assert_pulls(client, "fresh")
        await assert_pulls(client, "without a heartbeat".replace(" ", "_"))
        assert "fresh" not in await store.catalog.list_groups()

        store._maintenance._disk_ratio = lambda _: 0.1
        await asyncio.to_thread(store._maintenance.watch_disk)
        await client.request_ok(RequestCode.HEART_BEAT, headers.Heartbeat(), heartbeat)
        assert "fresh" in await store.catalog.list_groups(), "once there is space, the group is stored"
        assert "%RETRY%fresh" in client.broker.topics


async def assert_pulls(client: BrokerClient, group: str) -> None:
    answer = await client.pull(group, Queue("T", 0))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert b"before" in bytes(answer.body)
