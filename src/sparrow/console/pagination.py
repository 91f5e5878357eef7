"""Pages of lists: a limit, a sort key, and an opaque cursor that names the last item of the page before."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Generic, Protocol, TypeVar

import msgspec
from fastapi import Query
from pydantic import Field

from sparrow.console.models.fields import ApiModel
from sparrow.model.errors import BadRequest

T = TypeVar("T")
LIMIT_MAX = 200

LimitQuery = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="Most items of a page.")]
CursorQuery = Annotated[
    str | None, Query(max_length=16_384, description="The `next` of the page before; opaque.", examples=[None])
]
SearchQuery = Annotated[str | None, Query(max_length=255, description="Only names that contain this text.")]


class Page(ApiModel, Generic[T]):
    """A page of a list."""

    items: list[T]
    next: str | None = Field(description="The cursor of the next page; null on the last one.")
    total: int = Field(description="Items on all pages.")


class ScannedPage(Protocol):
    """A page of a list that is read in order, as far as a limit allows."""

    @property
    def scanned(self) -> int: ...
    @property
    def complete(self) -> bool: ...
    @property
    def next(self) -> object: ...


def show_scan(page: ScannedPage) -> dict[str, Any]:
    """Return how much was read for a page, and the cursor that continues it."""
    following = None if page.next is None else encode_cursor(page.next)
    return {"scanned": page.scanned, "complete": page.complete, "next": following}


def encode_cursor(value: object) -> str:
    """Return a value as an opaque cursor."""
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).decode().rstrip("=")


def decode_cursor(cursor: str | None, kind: type[T]) -> T | None:
    """Return the value of a cursor; raise `BadRequest` if it is not one of ours."""
    if cursor is None:
        return None
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        return msgspec.json.decode(raw, type=kind)
    except (ValueError, binascii.Error, msgspec.MsgspecError) as cause:
        raise BadRequest("the request", "cursor", "is not the `next` of an earlier answer") from cause


def make_page(
    items: Iterable[T],
    *,
    name_of: Callable[[T], str],
    sort_key: Callable[[T], Any],
    is_descending: bool,
    limit: int,
    cursor: str | None,
) -> dict[str, Any]:
    """Return a page: the items after the cursor, in the order of the sort key and then of the name."""
    ordered = sorted(items, key=name_of)
    ordered.sort(key=sort_key, reverse=is_descending)
    after = decode_cursor(cursor, tuple[Any, str])
    start = 0
    if after is not None:
        start = _start(ordered, after, name_of, sort_key, is_descending)
    page = ordered[start : start + limit]
    is_last = start + limit >= len(ordered)
    following = None if is_last or not page else encode_cursor((sort_key(page[-1]), name_of(page[-1])))
    return {"items": page, "next": following, "total": len(ordered)}


def _start(
    ordered: list[T],
    after: tuple[Any, str],
    name_of: Callable[[T], str],
    sort_key: Callable[[T], Any],
    is_descending: bool,
) -> int:
    """Return the index of the first item after the cursor, also if the item of the cursor is gone."""
    key, name = after
    try:
        for at, item in enumerate(ordered):
            own = sort_key(item)
            if own == key:
                if name_of(item) > name:
                    return at
            elif (own < key) if is_descending else (own > key):
                return at
    except TypeError as cause:
        raise BadRequest("the request", "cursor", "belongs to another sort key") from cause
    return len(ordered)
