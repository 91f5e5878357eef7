"""Three brokers of Apache RocketMQ 5.5 that replicate in its controller mode; the name server has the controller.

`allAckInSyncStateSet` acknowledges a send once every broker of the in-sync set has it, and `minInSyncReplicas` refuses
sends below two of them. Sparrow's policy `quorum` does the same.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import msgspec
from bench.versus.peers.replica_set import ReplicaSet
from bench.versus.peers.rocketmq import DEFAULT_SIZES, JVM_FLAGS, VERSION, RocketMQ
from tests.interop import official
from tests.interop.platforms import (
    LOOPBACK,
    START_TIMEOUT_S,
    apache_broker,
    apache_name_server,
    free_port,
    wait_for_master,
)
from tests.support.wait import wait_until

from sparrow.wire.frame import RemotingCommand, decode, encode

BROKERS = ReplicaSet.replicas
HEAP_MB = 512
SET_START_TIMEOUT_S = 180
"""Four JVMs share the cores during the start."""
BROKER_NAME = "broker-a"
REPLICATION = {
    "enableControllerMode": "true",
    "brokerId": -1,  # the controller assigns it
    "totalReplicas": BROKERS,
    "inSyncReplicas": BROKERS,
    "minInSyncReplicas": 2,
    "allAckInSyncStateSet": "true",
}
GET_SYNC_STATE_DATA = 1006
"""RequestCode.CONTROLLER_GET_SYNC_STATE_DATA"""


class RocketMQSet(ReplicaSet):
    name = RocketMQ.name
    measured_program = RocketMQ.measured_program

    @property
    def description(self) -> str:
        return (
            f"Apache RocketMQ {VERSION}, {BROKERS} brokers in controller mode, {HEAP_MB} MiB heap each, "
            "allAckInSyncStateSet, minInSyncReplicas 2; the process of name server and controller is not measured"
        )

    @classmethod
    def is_installed(cls) -> bool:
        return RocketMQ.is_installed()

    def _launch(self, folder: Path, running: ExitStack) -> None:
        kit = official.kit(VERSION)
        self._controller_port = free_port()
        controller = f"{LOOPBACK}:{self._controller_port}"
        name_server = apache_name_server(
            kit,
            folder,
            enableControllerInNamesrv="true",
            controllerDLegerGroup="controllers",
            controllerDLegerPeers=f"n0-{controller}",
            controllerDLegerSelfId="n0",
            controllerStorePath=folder / "controller",
        )
        self.address = running.enter_context(name_server)
        settings = DEFAULT_SIZES | REPLICATION | {"brokerName": BROKER_NAME, "controllerAddr": controller}
        outputs = []
        for number in range(BROKERS):
            place = folder / f"broker-{number}"
            place.mkdir()
            broker = apache_broker(kit, place, self.address, heap_mb=HEAP_MB, jvm_flags=JVM_FLAGS, **settings)
            outputs.append(running.enter_context(broker)[1])
        for output in outputs:
            output.wait_for("boot success", within_s=SET_START_TIMEOUT_S)
        wait_until(lambda: self.in_sync_count == BROKERS, within_s=SET_START_TIMEOUT_S)
        wait_for_master(self.address)

    @property
    def in_sync_count(self) -> int:
        return _brokers_in_sync(self._controller_port)


class _SyncState(msgspec.Struct, rename="camel"):
    in_sync_replicas: list[msgspec.Raw]


class _SyncStates(msgspec.Struct, rename="camel"):
    replicas_info_table: dict[str, _SyncState]


def _brokers_in_sync(controller_port: int) -> int:
    """Ask the controller for the size of the in-sync set."""
    request = RemotingCommand(GET_SYNC_STATE_DATA, body=msgspec.json.encode([BROKER_NAME]))
    with socket.create_connection((LOOPBACK, controller_port), START_TIMEOUT_S) as connection:
        connection.sendall(encode(request))
        with connection.makefile("rb") as answers:
            length = answers.read(4)
            frame = length + answers.read(int.from_bytes(length, "big"))
    known = msgspec.json.decode(bytes(decode(frame).body), type=_SyncStates).replicas_info_table
    return len(known[BROKER_NAME].in_sync_replicas) if BROKER_NAME in known else 0
