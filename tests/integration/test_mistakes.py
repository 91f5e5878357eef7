"""What Sparrow says to the mistakes of `examples/mistakes.py`: what happened, with which value, and what to do."""

import importlib.util
import linecache
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

import sparrow

SCRIPT = Path(__file__).parents[2] / "examples" / "mistakes.py"
SENTENCES_MAX = 2
CHARS_MAX = 500

IMPERATIVES = """
    begin call check choose convert correct create give issue leave name pass pip poll raise read remove return seek
    select send set start stop subscribe use write
"""
OTHER_REMEDIES = "did you mean|expected a|Possible options|its queues are|until all members have the same"
REMEDY = re.compile(rf"(^|[:;,.] |\bor )({'|'.join(IMPERATIVES.split())})\b|{OTHER_REMEDIES}", re.IGNORECASE)
"""What tells a person what to do."""


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("mistakes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


script = load_script()


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return {answer.mistake.title: answer for answer in script.make_mistakes()}


def test_there_are_more_than_forty_mistakes_with_different_titles() -> None:
    assert len({mistake.title for mistake in script.MISTAKES}) == len(script.MISTAKES) > 40


@pytest.mark.parametrize("title", [mistake.title for mistake in script.MISTAKES])
def test_answer_says_what_happened_and_what_to_do(title: str, answers: dict[str, Any]) -> None:
    answer = answers[title]
    text = answer.text
    assert text, f"nothing was said to {answer.mistake.code}"
    assert [mention for mention in answer.mistake.mentions if mention not in text] == [], text
    assert REMEDY.search(text), text
    assert "Traceback" not in text
    assert len(text) <= CHARS_MAX, text
    assert len(re.findall(r"[.?](?=\s|$)", text)) <= SENTENCES_MAX, text
    if answer.error is not None:
        assert_raised_on_purpose(answer.error)


def assert_raised_on_purpose(error: Exception) -> None:
    """Fail if the error comes from code that did not expect the mistake."""
    assert isinstance(error, sparrow.SparrowError | TypeError), repr(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(last.filename, last.lineno or 0).strip()
    is_handler_control = last.filename == "<mistake>" and isinstance(error, sparrow.SparrowError)
    assert "/sparrow/" in last.filename or is_handler_control, last
    assert line.startswith("raise ") or is_handler_control, f"{last.filename}:{last.lineno}: {line}"


def test_the_script_prints_each_mistake_with_its_answer(
    answers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for answer in answers.values():
        script.print_answer(answer)
        printed = capsys.readouterr().out
        for part in (answer.mistake.title, answer.mistake.code, answer.text):
            assert part in printed
