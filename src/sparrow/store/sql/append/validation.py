"""Messages before they are stored: their validation, and their rows."""

from __future__ import annotations

from collections.abc import Sequence

from sparrow.model.errors import Refused, TooLarge
from sparrow.model.message import Draft
from sparrow.store.sql.row_codec import NewRow, rows_of_drafts
from sparrow.wire.properties import PROPERTIES_BYTES_MAX

_DRAFTS_AT_ONCE, _PROPERTIES_AT_ONCE = 2_000, 256 * 1024
"""Drafts, and bytes of their properties, that become rows on the event loop at most."""


def is_large(drafts: Sequence[Draft]) -> bool:
    """Return whether drafts should become rows in a thread."""
    return len(drafts) > _DRAFTS_AT_ONCE or sum([len(draft.properties) for draft in drafts]) > _PROPERTIES_AT_ONCE


def checked_rows(drafts: Sequence[Draft], anonymous_token: int, *, body_bytes_max: int) -> list[NewRow]:
    """Return the rows of drafts, or raise as `validate_draft` does."""
    validate_drafts(drafts, body_bytes_max=body_bytes_max)
    return rows_of_drafts(drafts, [draft.token or anonymous_token for draft in drafts])


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
