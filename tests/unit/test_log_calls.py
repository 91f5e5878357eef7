"""Log calls name their values in the sentence, so that every formatter shows them and no reserved key can clash.

`log.warning("group %(group)s cannot be read: %(error)s", {"group": group, "error": error})`; see CONTRIBUTING.md.
"""

import ast
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"

METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log", "warn"}
LOGGERS = {"log", "logger", "logging", "_log", "_logger"}
ALLOWED_KEYWORDS = {"exc_info", "stack_info", "stacklevel"}


def log_calls(source: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            logger = node.func.value
            name = logger.attr if isinstance(logger, ast.Attribute) else getattr(logger, "id", None)
            is_made_here = isinstance(logger, ast.Call) and ast.unparse(logger.func).endswith("getLogger")
            if name in LOGGERS or is_made_here:
                yield node


def problem_of(call: ast.Call) -> str | None:
    """Return what is wrong with a log call; None if it follows the convention."""
    keywords = {keyword.arg or "**" for keyword in call.keywords}
    if keywords - ALLOWED_KEYWORDS:
        return f"has the keyword {min(keywords - ALLOWED_KEYWORDS)}; put the values into one dict after the sentence"
    args = call.args[1:] if isinstance(call.func, ast.Attribute) and call.func.attr == "log" else call.args
    if not args or not isinstance(args[0], ast.Constant) or not isinstance(args[0].value, str):
        return "does not begin with a literal sentence"
    sentence = args[0].value.replace("%%", "")
    named = set(re.findall(r"%\((\w+)\)", sentence))
    if re.search(r"%(?!\(\w+\))", sentence):
        return "has a value without a name in its sentence"
    if len(args) == 1:
        return f"names {sorted(named)} and gives no values" if named else None
    if len(args) > 2 or not isinstance(args[1], ast.Dict):
        return "gives its values in another way than as one dict literal"
    given = {key.value if isinstance(key, ast.Constant) else None for key in args[1].keys}
    if given != named:
        return f"names {sorted(named)} and gives {sorted(map(str, given))}"
    return None


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ('log.info("all is well")', None),
        ('log.info("100 %% of %(path)s", {"path": path})', None),
        ('log.error("%(path)s is damaged", {"path": path}, exc_info=error)', None),
        ('log.log(level, "%(path)s is damaged", {"path": path})', None),
        ('self._log.info("%(path)s", {"path": path})', None),
        ('log.info("a", extra={"message": 1})', "keyword extra"),
        ('logging.getLogger("x").info("a", extra=fields)', "keyword extra"),
        ('log.info(f"{path} is damaged")', "literal"),
        ("log.info(sentence)", "literal"),
        ('log.info("%s is damaged", path)', "without a name"),
        ('log.info("it is damaged", path)', "another way"),
        ('log.info("%(path)s is damaged", fields)', "another way"),
        ('log.info("%(path)s is damaged")', "gives no values"),
        ('log.info("%(path)s is damaged", {"file": path})', "gives ['file']"),
        ('log.info("%(path)s is damaged", {"path": path, "more": 1})', "gives ['more', 'path']"),
        ('log.info("%(path)s is damaged", {**fields})', "gives ['None']"),
    ],
)
def test_calls_that_break_the_convention_are_found(call, problem):
    [found] = log_calls(call)
    said = problem_of(found)
    assert said is None if problem is None else problem in (said or "")


def test_every_log_call_names_its_values_in_the_sentence():
    wrong = []
    for path in sorted(SRC.rglob("*.py")):
        for call in log_calls(path.read_text(encoding="utf-8")):
            if (problem := problem_of(call)) is not None:
                wrong.append(f"{path.relative_to(ROOT)}:{call.lineno}: the log call {problem}")
    assert not wrong, "\n".join(wrong)


def test_the_formatter_in_the_docs_shows_the_sentence_and_its_values():
    page = (ROOT / "docs" / "broker.md").read_text(encoding="utf-8")
    [snippet] = re.findall(r"^```python\n(import json\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict = {}
    before = list(logging.getLogger("sparrow").handlers)
    try:
        exec(snippet, names)
    finally:
        logging.getLogger("sparrow").handlers = before
    try:
        raise OSError("no space")
    except OSError as error:
        values = ({"path": Path("/data"), "error": error},)
        sentence = "%(path)s is full: %(error)s"
        record = logging.LogRecord("sparrow.store", logging.ERROR, __file__, 1, sentence, values, sys.exc_info())
    line = json.loads(names["JsonFormatter"]().format(record))
    assert (line["level"], line["message"]) == ("ERROR", "/data is full: no space")
    assert line["values"] == {"path": "/data", "error": "no space"}
    assert "OSError: no space" in line["traceback"]
