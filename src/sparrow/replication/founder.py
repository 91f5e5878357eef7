"""Founding a replica set with the data of one directory: of a single broker, or of a replica whose etcd is lost.

1. All that the log holds counts as committed: it was acknowledged by the rules that held before.
2. The log of a single broker has no epochs. All its bytes get epoch 1, by a record at the end.
3. The directory is changed only while no broker has it open.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sparrow.model.errors import Refused
from sparrow.replication.identity import IDENTITY_FILE, ReplicaIdentity, make_incarnation, save_identity
from sparrow.settings import LogSettings
from sparrow.store.log import LogStore
from sparrow.store.log.recovery import checkpoint as files

_EPOCHS_AHEAD = 1000
"""Other replicas may have been led in epochs that this one has not heard of. Those must not be used again: a replica
with committed bytes of such an epoch then finds out, and stops."""


class FoundingReplica(NamedTuple):
    """The replica whose log a new set begins with."""

    identity: ReplicaIdentity
    epoch: int
    """The next leader's epoch is above this one."""
    first: int
    end: int
    path: Path
    was_replica: bool


def prepare_founder(path: Path, replica_id: int, settings: LogSettings) -> FoundingReplica:
    """Make the store directory that of a replica, and return what the set must know of it. Blocks."""
    if not any((path / "commitlog").glob("*")):
        raise Refused(f"{path} holds no log: give the --data folder of a broker that was stopped")
    known = files.load(path / IDENTITY_FILE, ReplicaIdentity)
    if known is not None and known.replica_id != replica_id:
        raise Refused(f"{path} holds replica {known.replica_id}: give --replica {known.replica_id}")
    identity = known or ReplicaIdentity(make_incarnation(), replica_id, make_incarnation())
    # A replica's log is the leaders': nothing is written to it here. That of a single broker gets an epoch.
    with LogStore(path, settings, follows=True) as store:
        if known is None:
            store.replica.begin_history()
        elif not store.replica.epochs:
            raise Refused(f"replica {replica_id} in {path} has not copied enough to lead: choose another replica")
    with LogStore(path, settings, follows=True) as store:  # everything is in the log now, and nothing more is written
        epochs, first, end = store.replica.epochs, int(store.first), int(store.written)
    if known is None:
        files.save(path / files.HIGH_WATERMARK_FILE, files.HighWatermark(end))
        save_identity(path, identity)
    epoch = epochs[-1][0] + (0 if known is None else _EPOCHS_AHEAD)
    return FoundingReplica(identity, epoch, first, end, path, known is not None)


def undo_founder(founder: FoundingReplica) -> None:
    """Make the directory that of a single broker again: the set was not created."""
    if not founder.was_replica:
        (founder.path / IDENTITY_FILE).unlink(missing_ok=True)
