"""The log of servers, as text and as JSON."""

import json
import logging
import re

import pytest

from sparrow.telemetry.logs import JsonFormatter, TextFormatter


def record(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    found = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("sparrow.net", logging.WARNING, "x.py", 1, message, args, found)


def test_json_has_time_level_logger_sentence_and_the_values_of_the_call() -> None:
    line = JsonFormatter().format(record("%(peer)s sent %(count)d frames", {"peer": "10.0.0.1:5", "count": 3}))
    entry = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", entry.pop("time"))
    assert entry == {
        "level": "warning",
        "logger": "sparrow.net",
        "message": "10.0.0.1:5 sent 3 frames",
        "peer": "10.0.0.1:5",
        "count": 3,
    }


def test_values_that_are_no_json_are_shown_as_text_and_replace_no_field_of_ours() -> None:
    line = JsonFormatter().format(record("%(message)s %(error)s", {"message": "theirs", "error": ValueError("bad")}))
    entry = json.loads(line)
    assert entry["message"] == "theirs bad"
    assert entry["message_"] == "theirs"
    assert entry["error"] == "bad"


@pytest.mark.parametrize("hostile", ['"},{"level":"x', "line\nbreak", "\ud800", "\x1b[31m"])
def test_hostile_text_stays_inside_one_line_and_one_value(hostile: str) -> None:
    line = JsonFormatter().format(record("%(peer)s", {"peer": hostile}))
    assert "\n" not in line
    assert json.loads(line)["peer"] == hostile


def test_json_has_the_traceback_in_a_field() -> None:
    try:
        raise ValueError("broken")
    except ValueError as error:
        line = JsonFormatter().format(record("it failed", error=error))
    assert json.loads(line)["exception"].endswith("ValueError: broken")


def test_text_has_time_level_and_logger() -> None:
    line = TextFormatter().format(record("%(count)d frames", {"count": 3}))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00 WARNING sparrow\.net: 3 frames", line)
