"""Validation of messages before they are stored."""

from __future__ import annotations

from collections.abc import Sequence

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


def validate_drafts(drafts: Sequence[Draft], *, body_bytes_max: int) -> None:
    """Raise as `validate_draft` does for the first draft that the store does not accept (hot path)."""
    for draft in drafts:
        properties = draft.properties
        if (
            len(draft.body) > body_bytes_max
            or len(properties) > PROPERTIES_BYTES_MAX
            or not properties.isascii()  # text of other kinds is decoded
        ):
            validate_draft(draft, body_bytes_max=body_bytes_max)
