"""docs/cli.md is what `make docs` writes, and every command says how to use it."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path

import pytest
from tests.support.json_output import JSON_COMMANDS, commands_decoded_elsewhere

ROOT = Path(__file__).parents[2]

spec = importlib.util.spec_from_file_location("generate_cli", ROOT / "docs" / "generate_cli.py")
assert spec is not None
assert spec.loader is not None
generate_cli = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate_cli)


def test_page_is_current(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    assert generate_cli.PAGE.read_text() == generate_cli.page(), "run `make docs`"


def test_every_command_with_json_has_a_type_of_what_it_prints() -> None:
    printing = {
        words
        for words, command in generate_cli._commands()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert printing == set(generate_cli.JSON_TYPES)


def test_every_type_of_what_json_prints_has_a_test() -> None:
    documented = {*generate_cli.JSON_TYPES, *generate_cli.MORE_JSON_TYPES}
    assert set(JSON_COMMANDS) <= documented
    untested = documented - set(JSON_COMMANDS) - set(commands_decoded_elsewhere())
    assert not untested, "add them to JSON_COMMANDS of tests/support/json_output.py"


def test_every_command_has_examples() -> None:
    without = [
        words
        for words, command in generate_cli._commands()
        if "[bold]" not in (command.help or "") + (command.epilog or "")
    ]
    assert not without


def test_every_command_that_connects_takes_the_same_options() -> None:
    for words, command in generate_cli._commands():
        options = {option for parameter in command.params for option in parameter.opts}
        if words.split()[0] in ("topic", "group", "message", "send", "tail", "dlq", "resend", "transaction", "token"):
            assert {"--name-servers", "-n", "--access-key", "--secret-key"} <= options, words


def test_examples_of_the_help_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse the words of every example, without calling the command."""
    monkeypatch.chdir(tmp_path)
    for name in ("invoice.pdf", "sparrow-data"):
        (tmp_path / name).mkdir() if "." not in name else (tmp_path / name).write_text("")
    commands = dict(generate_cli._commands())
    for words, command in commands.items():
        if words.split()[0] in ("bus", "pipeline", "demo"):
            continue
        _, examples = generate_cli._split_examples(command.help or "", command.epilog or "")
        assert examples, words
        parsed = 0
        for example in examples:
            given = _words_of(example, words)
            if given is not None:
                command.make_context(words, given)
                parsed += 1
        assert parsed or "…" in " ".join(examples), words


def _words_of(example: str, words: str) -> list[str] | None:
    """Return the arguments after the command in an example; None if it has placeholders, or is of another command."""
    reader = shlex.shlex(example, posix=True, punctuation_chars="|>")
    reader.whitespace_split = True
    tokens = list(reader)
    found = [tokens[at + 1 :] for at, token in enumerate(tokens) if token == "sparrow"]
    own = [part[len(words.split()) :] for part in found if part[: len(words.split())] == words.split()]
    if not own or "…" in example:
        return None
    arguments = own[0]
    end = next((at for at, token in enumerate(arguments) if token in ("|", ">")), len(arguments))
    return arguments[:end]
