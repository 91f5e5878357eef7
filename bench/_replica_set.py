"""A replica set in separate processes for benches: etcd, a name server, and one process per replica."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec

from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.etcd.gateway import _encode, _key_value
from sparrow.replication.identity import make_incarnation

sys.path.append(str(Path(__file__).resolve().parent.parent))  # for benches, which run as scripts
from tests.support.databases import _free_port
from tests.support.etcd import etcd_cluster

CLUSTER = "DefaultCluster"


class ReplicaProcess:
    """One `sparrow broker --replica`, restarted on the same port and directory."""

    def __init__(self, folder: Path, words: list[str], environment: dict[str, str], replica_id: int) -> None:
        self.replica_id, self.port = replica_id, _free_port()
        self._log = folder / f"r{replica_id}.log"
        data = ["--replica", str(replica_id), "--port", str(self.port), "--data", str(folder / f"r{replica_id}")]
        self._command = [sys.executable, "-m", "sparrow", "broker", *words, *data]
        self._environment = environment
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class ReplicaProcesses:
    """The processes of one set."""

    def __init__(self, folder: Path, etcd_url: str, name: str, **settings: object) -> None:
        self.name, self.etcd_url = name, etcd_url
        self._http = httpx.Client(trust_env=False, timeout=5)
        self.set_id = make_incarnation()
        state = ReplicaSetState(
            set_id=self.set_id,
            members=(1, 2, 3),
            min_in_sync=2,
            in_sync={number: make_incarnation() for number in (1, 2, 3)},
        )
        self._prefix = f"sparrow/{CLUSTER}/{name}/"
        put = {"key": _encode(f"{self._prefix}state".encode()), "value": _encode(msgspec.json.encode(state))}
        self._http.post(f"{etcd_url}/v3/kv/put", json=put).raise_for_status()
        name_server_port = _free_port()
        self.name_servers = f"127.0.0.1:{name_server_port}"
        environment = {**os.environ, **{f"SPARROW_{key.upper()}": str(value) for key, value in settings.items()}}
        words = ["--port", str(name_server_port), "--data", str(folder / f"ns-{name}")]
        self._name_server = subprocess.Popen(
            [sys.executable, "-m", "sparrow", "name-server", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        shared = ["--name", name, "--etcd", etcd_url, "--name-servers", self.name_servers]
        path = folder / name
        path.mkdir()
        self.replicas = {number: ReplicaProcess(path, shared, environment, number) for number in (1, 2, 3)}

    def _keys(self) -> dict[str, bytes]:
        start = self._prefix.encode()
        asked = {"key": _encode(start), "range_end": _encode(start[:-1] + bytes([start[-1] + 1]))}
        found = self._http.post(f"{self.etcd_url}/v3/kv/range", json=asked).json()
        pairs = [_key_value(pair) for pair in found.get("kvs", ())]
        return {pair.key.removeprefix(self._prefix): pair.value for pair in pairs}

    def leader_id(self) -> int | None:
        """Return the replica that holds the leader key now."""
        value = self._keys().get("leader")
        return None if value is None else int(msgspec.json.decode(value)["replica_id"])

    def leader(self, *, but: int | None = None, within_s: float = 120) -> ReplicaProcess:
        """Wait until another replica than `but` holds the leader key, and return it."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            found = self.leader_id()
            if found is not None and found != but:
                return self.replicas[found]
            time.sleep(0.02)
        raise AssertionError(f"no replica leads within {within_s} s")

    def in_sync_count(self) -> int:
        """Return how many replicas are in the in-sync set; 0 while none leads."""
        keys = self._keys()
        return len(msgspec.json.decode(keys["state"])["in_sync"]) if "leader" in keys else 0

    def wait_in_sync(self, count: int = 3, within_s: float = 120) -> None:
        """Wait until so many replicas are in the in-sync set and one of them leads."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            if self.in_sync_count() >= count:
                return
            time.sleep(0.05)
        raise AssertionError(f"fewer than {count} replicas are in sync after {within_s} s")

    def stop(self) -> None:
        for replica in self.replicas.values():
            if replica.process is not None:
                replica.signal(signal.SIGCONT)
            replica.kill()
        self._name_server.kill()
        self._name_server.wait()
        self._http.close()


@contextmanager
def replica_processes(folder: Path, name: str = "set", **settings: object) -> Iterator[ReplicaProcesses]:
    """Run a set of three inside the context; yield it once all are in sync."""
    with etcd_cluster() as (etcd,):
        processes = ReplicaProcesses(folder, etcd.url, name, **settings)
        try:
            for replica in processes.replicas.values():
                replica.start()
            for replica in processes.replicas.values():
                wait_for_port(replica.port)
            processes.wait_in_sync()
            yield processes
        finally:
            processes.stop()


def wait_for_port(port: int, within_s: float = 60) -> None:
    """Wait until a server accepts connections."""
    until = time.monotonic() + within_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
