"""Safe extraction of tar archives on every Python from 3.11.0 on.

`TarFile.extractall(filter="data")` exists from Python 3.11.4 on; Debian 12 has 3.11.2. Older versions get the same
checks from here: nothing is written outside the folder, no link leads outside, no device is made, and neither owners
nor the set-user-id and group-writable bits are taken over.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

_KEPT_BITS = 0o755
"""Permission bits that a file keeps: no write permission for others, no set-user-id."""
_OWNER_BITS = 0o600
"""Permissions that a file always gets."""


def extract(archive: Path, folder: Path) -> None:
    """Extract an archive into a folder; raise `tarfile.TarError` at the first member that must not be extracted."""
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(folder, filter="data")
        else:
            packed.extractall(folder, members=_safe_members(packed, folder))  # noqa: S202 - members are checked


def _safe_members(packed: tarfile.TarFile, folder: Path) -> Iterator[tarfile.TarInfo]:
    # A generator: each member is checked after those before it are extracted, so that their links are followed.
    root = os.path.realpath(folder)
    for member in packed:
        yield _safe(member, root)


def _safe(member: tarfile.TarInfo, root: str) -> tarfile.TarInfo:
    member.name = member.name.lstrip("/" + os.sep)
    if not _is_inside(root, member.name):
        raise tarfile.ExtractError(f"{member.name!r} would be extracted outside {root!r}")
    if member.islnk() or member.issym():
        start = os.path.dirname(member.name) if member.issym() else ""
        if os.path.isabs(member.linkname) or not _is_inside(root, start, member.linkname):
            raise tarfile.ExtractError(f"{member.name!r} links to {member.linkname!r}, outside {root!r}")
    elif not (member.isfile() or member.isdir()):
        raise tarfile.ExtractError(f"{member.name!r} is neither a file, a folder nor a link")
    member.mode = _safe_mode(member)
    member.uid, member.gid, member.uname, member.gname = os.geteuid(), os.getegid(), "", ""
    return member


def _safe_mode(member: tarfile.TarInfo) -> int:
    if member.isdir():
        return _KEPT_BITS
    is_executable = member.mode & stat.S_IXUSR
    return member.mode & (_KEPT_BITS if is_executable else _KEPT_BITS & ~0o111) | _OWNER_BITS


def _is_inside(root: str, *parts: str) -> bool:
    return os.path.commonpath([os.path.realpath(os.path.join(root, *parts)), root]) == root
