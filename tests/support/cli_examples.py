"""Run the examples of docs/cli.md in this process, against one platform.

Pipes between commands, `cat FILE`, redirections and variables before a command are understood. `jq` is not run: its
input must be JSON. `tail` gets `--exit-at-end`, because it would follow the topic for ever. Questions are answered
with y.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from tests.support.doc_snippets import ROOT, blocks_of
from typer.testing import CliRunner

from sparrow.cli.exit_codes import exit_code_of
from sparrow.cli.main import app
from sparrow.model.errors import SparrowError

PAGE = ROOT / "docs" / "cli.md"
_PRINTED_NAME_SERVER = re.compile(r"\bmq-\d:9876\b")


def examples_of_page() -> dict[str, list[str]]:
    """Return the examples that can be run, by the words of their command."""
    headings = {}
    words = ""
    for number, line in enumerate(PAGE.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("### sparrow "):
            words = line.removeprefix("### sparrow ")
        headings[number] = words
    return {
        headings[block.line]: block.text.splitlines()
        for block in blocks_of(PAGE)
        if block.language == "sh" and not block.marker
    }


class ExampleRunner:
    """Runs examples in a folder. `ids` replaces printed message ids by real ones."""

    def __init__(self, name_servers: str, folder: Path) -> None:
        self._name_servers, self._folder = name_servers, folder
        self.ids: dict[str, str] = {}

    def run(self, example: str) -> tuple[int, str]:
        """Run one example; return the exit code of its last command of `sparrow`, and what was printed."""
        text = _PRINTED_NAME_SERVER.sub(self._name_servers, example)
        for printed, real in self.ids.items():
            text = text.replace(printed, real)
        code, output = 0, b""
        for part in _parts_of(text):
            match part:
                case ["cat", name]:
                    output = (self._folder / name).read_bytes()
                case ["jq", *_]:
                    json.loads(output)
                case [*words, ">", name]:
                    code, output = self._call(words, output)
                    (self._folder / name).write_bytes(output)
                case words:
                    code, output = self._call(words, output)
        return code, output.decode(errors="replace")

    def _call(self, words: list[str], given: bytes) -> tuple[int, bytes]:
        at = words.index("sparrow")
        variables = dict(word.split("=", 1) for word in words[:at])
        arguments = words[at + 1 :]
        if arguments[0] == "tail" and "--exit-at-end" not in arguments:
            arguments.append("--exit-at-end")
        runner = CliRunner(env={"SPARROW_NAME_SERVERS": self._name_servers, **variables})
        done = runner.invoke(app, arguments, input=given or b"y\ny\n")
        if isinstance(done.exception, SparrowError):
            return exit_code_of(done.exception), str(done.exception).encode()
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.stdout_bytes if done.exit_code == 0 else done.output.encode()


def _parts_of(text: str) -> list[list[str]]:
    """Return the words of the commands of a pipe, without comments."""
    reader = shlex.shlex(text, posix=True, punctuation_chars="|>")
    reader.whitespace_split = True
    parts: list[list[str]] = [[]]
    for token in reader:
        if token == "|":
            parts.append([])
        else:
            parts[-1].append(token)
    return parts
