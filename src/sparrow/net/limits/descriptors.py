"""File descriptors of a server process: connections leave a reserve for the files of its store."""

from __future__ import annotations

import logging
import resource

from sparrow.model.errors import SettingsError

log = logging.getLogger(__name__)

RESERVE = 256
"""Descriptors that connections leave free: for segments, queue and index files, and connections to other servers."""
LIMIT_MIN = 64
"""With fewer descriptors, a server cannot work."""
FEW = 4096
"""Below this, a server warns: a busy broker needs more. Above, a log at the level info says what the limit is."""
_ADVICE = "raise it with `ulimit -n`, or with LimitNOFILE= of its systemd unit"


def prepare_descriptors(connections_max: int) -> int:
    """Raise the soft limit of open files as far as allowed; return the first descriptor that no connection may have.

    Descriptors are numbered from 0, and the lowest free one is taken, so a high number means that few are free.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + 2 * RESERVE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if allowed > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
            soft = allowed
    if soft == resource.RLIM_INFINITY:
        return 1 << 31
    if soft < LIMIT_MIN:
        raise SettingsError("the limit of open files", soft, "the system", f"at least {LIMIT_MIN}; {_ADVICE}")
    reserve = min(RESERVE, soft // 2)
    if soft < wanted:
        log.log(
            logging.WARNING if soft < FEW else logging.INFO,
            "the limit of open files is %(limit)s: only about %(connections)s connections are accepted, not"
            " %(connections_max)s; %(advice)s",
            {
                "limit": soft,
                "connections": soft - reserve,
                "connections_max": connections_max,
                "advice": _ADVICE,
            },
        )
    return soft - reserve
