"""Grouping of outbox rows into insert statements."""

from __future__ import annotations

from sparrow.bus.sql.outbox import PublishedRow, outgoing_group, row_batches


def events(*sizes: int) -> list[PublishedRow]:
    return [PublishedRow(number, "t", "x" * size) for number, size in enumerate(sizes)]


def test_a_statement_holds_at_most_the_maximum_number_of_rows() -> None:
    assert [len(lot) for lot in row_batches(events(*[10] * 7), 3)] == [3, 3, 1]


def test_a_statement_stays_below_a_megabyte_unless_one_row_is_larger() -> None:
    found = [[event.id for event in lot] for lot in row_batches(events(600_000, 600_000, 10, 3_000_000, 10), 100)]
    assert found == [[0], [1, 2], [3], [4]]


def test_no_rows_give_no_statement() -> None:
    assert list(row_batches([], 3)) == []


def test_version_v1_uses_the_unnamed_outgoing_group() -> None:
    assert (outgoing_group("v1"), outgoing_group("v2")) == ("", "v2")
