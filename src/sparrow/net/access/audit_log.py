"""The audit log of a server: requests that were refused, and requests of administrators, as lines of `sparrow.audit`.

1. Each line names the peer, the access key and the request. No line contains a secret, a body or a signature.
2. Refusals repeat: those of one cause are logged at growing intervals, each line with the number since the last one.
   Requests of administrators are all logged, with how they ended.
3. A peer cannot fill the log or the memory: causes are few for each address, and their number is limited.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Literal

from sparrow.log_intervals import LogIntervals
from sparrow.model.access.token import TOKEN_NAME_CHARS_MAX
from sparrow.model.errors import NotPermitted
from sparrow.wire.codes import ResponseCode, request_code_name
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.signing import ACCESS_KEY_FIELD

AUDIT_LOGGER = "sparrow.audit"
log = logging.getLogger(AUDIT_LOGGER)

CAUSES_MAX = 4096
"""Causes of refusals that are told apart; further ones count as one."""
NAMES_MAX = 20
"""Names that one line has."""
_HEADER_TARGETS = ("topic", "brokerName", "namespace", "key")
"""Header fields that say what a request is about, where a server does not tell more."""

RefusalCause = Literal["unsigned", "signature", "revoked", "disabled", "address", "permission", "tls"]
"""Why access is refused. `tls`: a connection without a valid handshake, of which the audit log has no line."""


class AccessRefused(NotPermitted):
    """A request without a valid signature, or of a token that does not permit it."""

    def __init__(self, what: str, why: str, *, cause: RefusalCause) -> None:
        super().__init__(what, why)
        self.cause = cause


class AuditLog:
    """Writes the lines of one server."""

    def __init__(
        self,
        actions: Collection[int],
        describe_targets: Callable[[RemotingCommand], str] | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the log. `actions`: the codes of requests that change something; the function says what."""
        self.actions = frozenset(int(code) for code in actions)
        self._describe_targets = describe_targets or _header_targets
        self._intervals = LogIntervals(now_s)
        self._unlogged: dict[Hashable, int] = {}

    def refused(self, command: RemotingCommand, peer: str, refusal: AccessRefused) -> None:
        """Log a refusal, unless the same cause was logged a short time ago."""
        access_key = _access_key(command)
        host = peer.rpartition(":")[0]
        # Only a valid signature proves an access key; without one, a peer could make up a new cause for every request.
        is_proven = refusal.cause in ("revoked", "disabled", "address", "permission")
        subject: Hashable = (host, refusal.cause, access_key, command.code) if is_proven else (host, refusal.cause)
        if subject not in self._unlogged and len(self._unlogged) >= CAUSES_MAX:
            subject = "others"
        if not self._intervals.is_due(subject):
            self._unlogged[subject] += 1
            return
        more = self._unlogged.get(subject, 0)
        self._unlogged[subject] = 0
        log.warning(
            "%(request)s of %(peer)s with access key %(access_key)s is refused (%(cause)s): %(reason)s"
            " (%(more)s more of this cause since the last line)",
            {
                "request": request_code_name(command.code),
                "peer": peer,
                "access_key": access_key,
                "cause": refusal.cause,
                "reason": refusal.why,
                "more": more,
            },
        )

    def done(self, command: RemotingCommand, peer: str, response_code: int) -> None:
        """Log a request of an administrator that was answered."""
        is_done = response_code == ResponseCode.SUCCESS
        log.info(
            "%(request)s of %(peer)s with access key %(access_key)s is %(result)s: %(targets)s",
            {
                "request": request_code_name(command.code),
                "peer": peer,
                "access_key": _access_key(command),
                "result": "done" if is_done else f"not done (code {response_code})",
                "targets": self._describe_targets(command),
            },
        )


def name_targets(targets: Sequence[tuple[str, str]]) -> str:
    """Return names as a line has them."""
    shown = [f"{what} {name[:TOKEN_NAME_CHARS_MAX]!r}" for what, name in targets[:NAMES_MAX]]
    return ", ".join([*shown, "…"] if len(targets) > NAMES_MAX else shown) or "no name"


def _header_targets(command: RemotingCommand) -> str:
    fields = command.fields()
    return name_targets([(field, fields[field]) for field in _HEADER_TARGETS if fields.get(field)])


def _access_key(command: RemotingCommand) -> str:
    return repr(command.fields().get(ACCESS_KEY_FIELD, "")[:TOKEN_NAME_CHARS_MAX])
