"""Pages of lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow.console.pagination import decode_cursor, encode_cursor, make_page
from sparrow.model.errors import BadRequest


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 2), max_size=30),
    st.integers(1, 7),
    st.booleans(),
)
def test_pages_together_are_the_list_in_order(rows: dict[str, int], limit: int, is_descending: bool) -> None:
    items = list(rows.items())
    seen: list[tuple[str, int]] = []
    cursor = None
    while True:
        page = make_page(
            items,
            name_of=lambda row: row[0],
            sort_key=lambda row: row[1],
            is_descending=is_descending,
            limit=limit,
            cursor=cursor,
        )
        assert len(page["items"]) <= limit
        seen += page["items"]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == sorted(items, key=lambda row: (-row[1] if is_descending else row[1], row[0]))


def test_a_page_continues_when_the_item_of_the_cursor_is_gone() -> None:
    def names_after(names: str, cursor: str | None) -> tuple[list[str], str | None]:
        page = make_page(list(names), name_of=str, sort_key=str, is_descending=False, limit=2, cursor=cursor)
        return page["items"], page["next"]

    first, cursor = names_after("abcd", None)
    assert first == ["a", "b"]
    assert names_after("acd", cursor) == (["c", "d"], None)


@pytest.mark.parametrize("text", ["!", "", "bnVsbA", "WzFd", "\u00e9", encode_cursor({"a": 1})])
def test_a_cursor_that_is_not_ours_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="cursor"):
        make_page(["a"], name_of=str, sort_key=str, is_descending=False, limit=1, cursor=text)


def test_a_cursor_of_another_sort_key_is_refused() -> None:
    with pytest.raises(BadRequest, match="another sort key"):
        make_page(["a"], name_of=str, sort_key=str, is_descending=False, limit=1, cursor=encode_cursor((1, "a")))


def test_cursors_keep_their_value() -> None:
    assert decode_cursor(encode_cursor({"broker/0": 7}), dict[str, int]) == {"broker/0": 7}
