"""Pipeline files: valid definitions, and the errors of invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparrow.model.errors import Refused
from sparrow.spark.pipelines.definition import load

GOOD = """
[pipeline]
name = "revenue"
name_servers = "127.0.0.1:9876"
checkpoint = "state"

[[sources]]
name = "orders"
topic = "orders"

[[steps]]
name = "sums"
sql = "SELECT 1"

[[sinks]]
name = "out"
from = "sums"
topic = "sums"
"""


def file_of(folder: Path, text: str, name: str = "p.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_valid_file_is_loaded(tmp_path: Path) -> None:
    pipeline = load(file_of(tmp_path, GOOD))
    assert (pipeline.name, pipeline.sources[0].topic, pipeline.sinks[0].input) == ("revenue", "orders", "sums")
    assert pipeline.is_stream
    assert not pipeline.is_endless


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('topic = "orders"', "", "needs exactly one of topic, pattern, parquet"),
        ('topic = "orders"', 'topic = "orders"\nparquet = "x"', "has topic and parquet"),
        ('topic = "orders"', 'topic = "orders"\ncolour = "red"', "unknown field `colour`"),
        (
            'from = "sums"',
            'from = "summs"',
            "reads from 'summs', which does not exist. Sources and steps: orders, sums",
        ),
        ('name = "sums"', 'name = "orders"', "with the name 'orders'"),
        ('name = "sums"', 'name = "my sums"', "not a valid table name"),
        ('checkpoint = "state"', "", "set checkpoint to a folder"),
        ('topic = "sums"', 'sql = "sqlite:///x"', "set table"),
        ('topic = "sums"', 'parquet = "x"\nmode = "update"', "files can only be appended"),
        ("[pipeline]", "[pipelines]", "unknown field `pipelines`"),
        ("[pipeline]", "[pipeline", "cannot read pipeline file"),
        ('name = "revenue"', "", "missing required field `name`"),
        ('sql = "SELECT 1"', "", "needs exactly one of sql, call"),
    ],
)
def test_every_error_is_named(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        load(file_of(tmp_path, GOOD.replace(old, new, 1)))
    assert sentence in str(refused.value)


def test_name_servers_have_a_default_and_an_old_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load(file_of(tmp_path, GOOD.replace('name_servers = "127.0.0.1:9876"', "")))
    assert found.name_servers_of(found.sources[0]) == "127.0.0.1:9876"
    monkeypatch.setenv("SPARROW_NAME_SERVERS", "mq:9876")
    assert found.name_servers_of(found.sinks[0]) == "mq:9876"
    old = GOOD.replace("name_servers", "nameserver") + 'nameserver = "other:9876"\n'
    with pytest.warns(FutureWarning, match="nameserver is now called name_servers"):
        found = load(file_of(tmp_path, old))
    assert found.name_servers_of(found.sources[0]) == "127.0.0.1:9876"
    assert found.name_servers_of(found.sinks[0]) == "other:9876"


def test_a_python_file_may_use_functions(tmp_path: Path) -> None:
    text = """
from sparrow.spark.pipelines import Pipeline, Sink, Source, Step

pipeline = Pipeline(
    name="p",
    sources=[Source(name="numbers", parquet="in", stream=False)],
    steps=[Step(name="few", call=lambda numbers: numbers.limit(3))],
    sinks=[Sink(name="out", input="few", console=True)],
)
"""
    pipeline = load(file_of(tmp_path, text, "p.py"))
    assert pipeline.steps[0].call is not None
    assert not pipeline.is_stream
    with pytest.raises(Refused, match="does not define a pipeline"):
        load(file_of(tmp_path, "x = 1", "q.py"))


def test_a_missing_file_or_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="does not exist"):
        load(tmp_path / "none.toml")
    with pytest.raises(Refused, match="not a pipeline file"):
        load(file_of(tmp_path, "", "p.yaml"))
