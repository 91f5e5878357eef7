"""docs/client.md lists every option of producers and consumers, and every limit of `Prefetch`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparrow import ConsumerOptions, Prefetch, ProducerOptions

PAGE = (Path(__file__).parents[3] / "docs" / "client.md").read_text(encoding="utf-8")
POSITIONAL = {"name_servers", "group"}


def names_in_table(head: str) -> set[str]:
    """Return the names in the first column of the table with this head."""
    table = PAGE.partition(f"\n| {head} |")[2].partition("\n\n")[0]
    assert table, f"docs/client.md has no table with the head {head}"
    return {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}


@pytest.mark.parametrize(
    ("head", "owner", "others"),
    [
        ("Argument of `Producer`", ProducerOptions, POSITIONAL),
        ("Argument of `Consumer`", ConsumerOptions, POSITIONAL),
        ("`Prefetch`", Prefetch, set()),
    ],
)
def test_the_page_lists_every_option_and_no_other(head: str, owner: type, others: set[str]) -> None:
    assert names_in_table(head) == set(owner.__annotations__) | others
