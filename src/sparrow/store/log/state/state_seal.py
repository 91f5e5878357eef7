"""The seal of state records: a keyed digest that tells the store's own state records from bytes that look like one.

    property  SPARROW_DIGEST = 32 hex digits: BLAKE2b with the store's key over
              physical offset (8 bytes), queue offset (8 bytes), body

1. The key is random. It is in the file `sparrow.key`, which only the owner can read, and in the log as state, so that a
   replica that copies the log can check it too. Clients cannot read state records.
2. `since` in the file is where sealing began: below it, state records without a digest are accepted, because an older
   version, or another leader, wrote them. From it on, a state record without the right digest counts as damage.
3. The digest covers the place, so that no copy of a state record is accepted elsewhere.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from hashlib import blake2b
from pathlib import Path
from struct import Struct

import msgspec

from sparrow.model.message import StoredMessage
from sparrow.store.log.recovery import checkpoint as files

log = logging.getLogger(__name__)

DIGEST_PROPERTY = "SPARROW_DIGEST"
_DIGEST_BYTES = 16
_KEY_BYTES = 32
_PLACE = Struct(">qq")
_PURPOSE = b"sparrow-state"


class StateKey(msgspec.Struct, frozen=True):
    """The content of the key file. Field names are part of the file format."""

    key: str
    """In hex digits."""
    since: int
    """The physical offset from which on every state record is sealed."""


class StateSeal:
    """Seals state records and checks them. Without a key, every state record is accepted."""

    def __init__(self, path: Path) -> None:
        self._file = path / files.KEY_FILE
        self._kept = files.load(self._file, StateKey)

    @property
    def key(self) -> str | None:
        return None if self._kept is None else self._kept.key

    def create(self, since: int) -> str:
        """Make a new key, which seals the state records from an offset on, and return it."""
        key = secrets.token_hex(_KEY_BYTES)
        self.adopt(key, since)
        return key

    def adopt(self, key: str, since: int) -> None:
        """Use a key from an offset on. It is durable before a record that is sealed with it can be."""
        self._save(StateKey(key, since))

    def accept_before(self, physical_offset: int) -> None:
        """Accept what lies below an offset without a digest: a leader sent it that does not seal with this key."""
        if self._kept is not None and self._kept.since < physical_offset:
            self._save(StateKey(self._kept.key, physical_offset))

    def _save(self, kept: StateKey) -> None:
        files.save(self._file, kept)
        self._kept = kept

    def properties(self, body: bytes, physical_offset: int, queue_offset: int) -> bytes:
        """Return the properties of the state record with this body at this place."""
        assert self._kept is not None, "a key is created before the first state record"
        digest = _digest(self._kept.key, body, physical_offset, queue_offset)
        return f"{DIGEST_PROPERTY}\x01{digest}\x02".encode()

    def is_accepted(self, message: StoredMessage) -> bool:
        """Return whether a state record that was found at its place in the log is the store's own."""
        return self._kept is None or message.physical_offset < self._kept.since or self.is_sealed(message)

    def is_sealed(self, message: StoredMessage) -> bool:
        """Return whether a state record has the right digest: then it is genuine, wherever it was found."""
        if self._kept is None:
            return False
        expected = _digest(self._kept.key, message.body, message.physical_offset, message.queue_offset)
        return hmac.compare_digest(message.properties.get(DIGEST_PROPERTY, "").encode(), expected.encode())


def _digest(key: str, body: bytes, physical_offset: int, queue_offset: int) -> str:
    keyed = blake2b(
        _PLACE.pack(physical_offset, queue_offset), key=bytes.fromhex(key), digest_size=_DIGEST_BYTES, person=_PURPOSE
    )
    keyed.update(body)
    return keyed.hexdigest()
