"""A replica set of three Sparrow brokers with policy `quorum`, a name server and etcd, each a process of its own."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

from bench._replica_set import ReplicaProcesses, replica_processes
from bench.versus.peers.replica_set import ReplicaSet
from bench.versus.workload import SPARROW
from tests.interop.platforms import wait_for_master

import sparrow as package

STEADY = {"replication__lease_s": 20, "replication__lag_ms": 10_000}
"""A busy machine must not end the lease of the leader, or the in-sync set of three, while costs are measured."""


class SparrowSet(ReplicaSet):
    name = SPARROW
    measured_program = "--replica"

    @property
    def description(self) -> str:
        return (
            f"{package.__version__}, three `sparrow broker --replica`, policy quorum, at least 2 in sync; "
            "the processes of etcd and of the name server are not measured"
        )

    @classmethod
    def is_installed(cls) -> bool:
        return shutil.which("etcd") is not None

    def _launch(self, folder: Path, running: ExitStack) -> None:
        self._set: ReplicaProcesses = running.enter_context(replica_processes(folder, "set", **STEADY))
        self.address = self._set.name_servers
        wait_for_master(self.address)

    @property
    def in_sync_count(self) -> int:
        return self._set.in_sync_count()
