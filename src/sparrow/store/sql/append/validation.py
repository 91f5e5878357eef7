"""Validation of messages before they are stored."""

from __future__ import annotations

from sparrow.model.errors import Refused, TooLarge
from sparrow.model.message import Draft
from sparrow.wire.properties import PROPERTIES_BYTES_MAX


def validate_draft(draft: Draft, *, body_bytes_max: int) -> Draft:
    """Return the draft if the store accepts it (`TooLarge`, `Refused`)."""
    if len(draft.body) > body_bytes_max:
        raise TooLarge("the body", len(draft.body), body_bytes_max)
    if len(draft.properties) > PROPERTIES_BYTES_MAX:
        raise TooLarge("the property string", len(draft.properties), PROPERTIES_BYTES_MAX)
    if not draft.properties.isascii():
        try:
            draft.properties.decode()
        except UnicodeDecodeError as cause:
            raise Refused(f"the properties are not UTF-8 at byte {cause.start}") from cause
    return draft
