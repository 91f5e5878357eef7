from __future__ import annotations

from pathlib import Path

from sparrow.spark.doc_tables import fill_tables
from sparrow.spark.sink.options import SINK_OPTIONS
from sparrow.spark.source.options import SOURCE_OPTIONS

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"


def test_the_manual_lists_every_option_of_the_code() -> None:
    page = PAGE.read_text()
    assert page == fill_tables(page), "run: python -m sparrow.spark.doc_tables docs/spark.md"
    for option in (*SOURCE_OPTIONS, *SINK_OPTIONS):
        assert f"| `{option.name}` |" in page
