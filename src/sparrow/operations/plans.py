"""Plans of dangerous operations: what would happen, and a hash that executing it has to name.

1. A plan is made again when it is executed. If its hash is another one, the state has changed, and `PlanChanged` is
   raised before anything is done; `force` skips the comparison.
2. The hash covers what the operator decided by: the request, and the state that the request would change. It leaves
   out what moves with normal traffic and does not alter the decision, such as the end of a queue.
"""

from __future__ import annotations

import hashlib

import msgspec

from sparrow.operations.errors import PlanChanged

_HASH_CHARS = 16


def hash_plan(*basis: object) -> str:
    """Return the hash of what a plan was made from: values that JSON can hold."""
    return hashlib.sha256(msgspec.json.encode(basis, order="sorted")).hexdigest()[:_HASH_CHARS]


def check_plan(what: str, given: str | None, current: str, *, force: bool) -> None:
    """Raise `PlanChanged` unless the given hash is the current one, or the operation is forced."""
    if not force and given != current:
        raise PlanChanged(what, given or "", current)
