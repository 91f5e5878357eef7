"""What a directory knows of the RocketMQ master that it follows, in a file of the store directory.

1. `following`: the log is the beginning of the master's. Nothing of our own may be appended, so no broker opens it.
2. `promoting`: the log up to `end` is complete, and the master is fenced. Whatever lies behind `end` is an unfinished
   import of the metadata, which is cut off and done again.
3. `promoted`: an ordinary store of ours, under the name of the master.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from sparrow.model.errors import Refused
from sparrow.store.log.recovery import checkpoint as files

FOLLOWING_FILE = "sparrow.following"
FollowerPhase = Literal["following", "promoting", "promoted"]


class FollowerState(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a directory follows, or followed. Field names are part of the file format."""

    master: str
    broker_name: str
    cluster: str
    name_servers: str = ""
    phase: FollowerPhase = "following"
    end: int = 0
    """The physical offset at which our own records begin."""
    master_settings: dict[str, str] = {}
    """Settings of the master as they were before a promotion changed them."""


def load_follower_state(path: Path) -> FollowerState | None:
    """Return whom the directory follows or followed, None if that was never one of RocketMQ's masters."""
    return files.load(path / FOLLOWING_FILE, FollowerState)


def save_follower_state(path: Path, state: FollowerState) -> None:
    """Write the state into a store directory, durably."""
    path.mkdir(parents=True, exist_ok=True)
    files.save(path / FOLLOWING_FILE, state)


def begin_following(path: Path, wanted: FollowerState) -> FollowerState:
    """Return the state for a start that follows a master, and write it. Raises `Refused` for another directory."""
    known = load_follower_state(path)
    if known is None:
        if any((path / "commitlog").glob("*")):
            raise Refused(f"{path} holds a log that follows no RocketMQ master: choose an empty directory with --data")
    elif known.phase != "following":
        raise Refused(f"{path} was promoted already: start the broker without --follow-rocketmq")
    elif (known.broker_name, known.cluster) != (wanted.broker_name, wanted.cluster):
        raise Refused(
            f"{path} follows broker {known.broker_name!r} of cluster {known.cluster!r}, and {wanted.master} is "
            f"{wanted.broker_name!r} of {wanted.cluster!r}: choose another directory with --data"
        )
    else:
        wanted = msgspec.structs.replace(wanted, master_settings=known.master_settings)
    if wanted != known:
        save_follower_state(path, wanted)
    return wanted
