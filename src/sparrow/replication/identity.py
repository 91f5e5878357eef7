"""Who a replica is: its set, its id for life, and the incarnation of its data, in a file of the store directory.

An incarnation vouches for every byte that the replica has acknowledged. It changes when some of them may be gone: the
directory was empty, or acknowledged bytes were only in the page cache and the machine was restarted.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from sparrow.model.errors import Refused
from sparrow.store.log.recovery import checkpoint as files

IDENTITY_FILE = "sparrow.replica"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ReplicaIdentity(msgspec.Struct, frozen=True):
    """The identity of a replica."""

    set_id: str
    replica_id: int
    incarnation: str
    boot_id: str = ""
    """The boot of the machine in which the replica was last started."""
    heard_epoch: int = 0
    """The highest epoch that the replica has heard of: it takes no part in lower ones."""
    must_copy: bool = False
    """Damage was found in the log: everything is copied from a leader."""


def make_incarnation() -> str:
    """Return a new random incarnation."""
    return secrets.token_hex(8)


def save_identity(path: Path, identity: ReplicaIdentity) -> None:
    """Write the identity into a store directory, durably."""
    files.save(path / IDENTITY_FILE, identity)


def known_set_id(path: Path) -> str | None:
    """Return the set whose log a store directory holds; None if it holds none, or one without replicas."""
    known = files.load(path / IDENTITY_FILE, ReplicaIdentity)
    return known.set_id if known is not None else None


def load_identity(
    path: Path,
    set_id: str,
    replica_id: int,
    *,
    flushes: bool,
    assigned: str | None = None,
    may_change_id: bool = False,
    may_adopt_log: bool = False,
) -> ReplicaIdentity:
    """Return the identity for a start of the replica, and write it. Call it before the store is opened.

    `flushes`: only durable bytes are acknowledged. `assigned`: the incarnation of an empty directory, if the set has
    not begun yet. `may_change_id`: the broker has a fixed role, and may have had another one. `may_adopt_log`: the
    directory may be that of a broker without replicas. Raises `Refused` for the directory of another replica or set.
    """
    path.mkdir(parents=True, exist_ok=True)
    boot_id = _boot_id()
    known = files.load(path / IDENTITY_FILE, ReplicaIdentity)
    has_other_id = known is not None and known.replica_id != replica_id and not may_change_id
    if known is not None and (known.set_id != set_id or has_other_id):
        raise Refused(
            f"{path} holds replica {known.replica_id} of set {known.set_id}, not replica {replica_id} of {set_id}: "
            "choose another directory, or correct the settings"
        )
    if known is None and (path / IDENTITY_FILE).exists():
        raise Refused(
            f"{path / IDENTITY_FILE} is damaged, and which bytes this replica has acknowledged is unknown: "
            f"move {path} away, and start with an empty directory"
        )
    if known is None and not may_adopt_log and any((path / "commitlog").glob("*")):
        raise Refused(f"{path} holds a log that is no replica of set {set_id}: choose an empty directory")
    was_unclean = (path / files.ABORT_FILE).exists()
    may_lack_bytes = was_unclean and not flushes and (known is None or known.boot_id != boot_id)
    if known is None:
        incarnation = assigned or make_incarnation()
    else:
        incarnation = make_incarnation() if may_lack_bytes else known.incarnation
    if known is None:
        identity = ReplicaIdentity(set_id, replica_id, incarnation, boot_id)
    else:
        identity = msgspec.structs.replace(known, incarnation=incarnation, boot_id=boot_id)
    if identity != known:
        save_identity(path, identity)
    return identity


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""  # unknown: each unclean stop counts
