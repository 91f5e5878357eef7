"""Drafts to append, and the messages read back."""

from sparrow.model.message import Draft, StoredMessage
from sparrow.store.spi import Slice
from sparrow.wire import properties, record


def make_draft(
    body: bytes | str = b"", *, tags: str = "", keys: str = "", unique: str = "", flag: int = 0, sys_flag: int = 0
) -> Draft:
    named = {"KEYS": keys, "TAGS": tags, "UNIQ_KEY": unique}
    return Draft(
        body=body.encode() if isinstance(body, str) else body,
        properties=properties.encode(named),
        flag=flag,
        sys_flag=sys_flag,
        born_ms=1,
    )


def decode_messages(found: Slice) -> list[StoredMessage]:
    """Return the messages of a slice; assert that the slice describes them correctly."""
    decoded = record.decode_all(found.tobytes())
    assert sum(found.sizes) == len(found.tobytes())
    assert len(found.sizes) == len(decoded)
    return decoded


def decode_bodies(found: Slice) -> list[bytes]:
    return [message.body for message in decode_messages(found)]
