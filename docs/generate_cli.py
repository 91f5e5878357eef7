"""Write docs/cli.md: every command of `sparrow`, from its help, and what `--json` prints.

python docs/generate_cli.py            # rewrite docs/cli.md
python docs/generate_cli.py --check    # exit with 1 if docs/cli.md is out of date
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import typer

from sparrow.cli.exit_codes import ExitCode
from sparrow.cli.json_types import JSON_TYPES, MORE_JSON_TYPES
from sparrow.cli.main import app

PAGE = Path(__file__).with_name("cli.md")

_INTRODUCTION = """\
# Command line

Generated from the program by `make docs`; do not edit. `sparrow --help` and `sparrow COMMAND --help` show the same.

- Results go to stdout, everything else to stderr. In a terminal, lists are tables; in a pipe, they are rows separated
  by tabs, with a heading. Nothing is cut.
- `--json` prints one JSON document; `send` and `tail --format json` print one object a line. Later versions add fields,
  and rename none.
- `--name-servers host:port;host:port`, or the variable `SPARROW_NAME_SERVERS`, says which platform is meant. With
  `auth = true`, the variables `SPARROW_ACCESS_KEY` and `SPARROW_SECRET_KEY` hold the token; an option would be visible
  to other users of the machine.
- What cannot be undone asks first and says what will happen; `--yes` answers, `--dry-run` only says it.
- Text of messages is printed inert: control characters are escaped, so that a body cannot change the terminal.
- `sparrow --install-completion` completes commands, options, topics and groups in bash, zsh, fish and PowerShell.
"""

_MQADMIN = """\
## From mqadmin

| mqadmin | sparrow |
| --- | --- |
| `topicList` | `sparrow topic list` |
| `topicStatus`, `topicRoute` | `sparrow topic show TOPIC` |
| `updateTopic` | `sparrow topic create TOPIC`, `sparrow topic update TOPIC` |
| `updateTopicPerm` | `sparrow topic update TOPIC --permission rw` |
| `deleteTopic` | `sparrow topic delete TOPIC` |
| `consumerProgress` | `sparrow group list`, `sparrow group show GROUP` |
| `consumerConnection`, `consumerStatus` | `sparrow group show GROUP` |
| `deleteSubGroup` | `sparrow group delete GROUP` |
| `resetOffsetByTime` | `sparrow group reset GROUP TOPIC --to TIME` |
| `skipAccumulatedMessage` | `sparrow group reset GROUP TOPIC --to last` |
| `queryMsgById`, `queryMsgByUniqueKey` | `sparrow message get ID --topic TOPIC` |
| `queryMsgByKey` | `sparrow message find TOPIC --key KEY` |
| `queryMsgByOffset` | `sparrow tail TOPIC --from OFFSET --queue N --count 1` |
| `printMsg`, `printMsgByQueue`, `consumeMessage` | `sparrow tail TOPIC --from first --exit-at-end` |
| `sendMessage` | `sparrow send TOPIC BODY` |
| `checkMsgSendRT` | `sparrow bench --name-servers … --only send` |
| `createUser`, `createAcl` | `sparrow token issue NAME --type pc --topic 'orders-*' --group GROUP` |
| `updateUser`, `updateAcl` | `sparrow token change NAME --type pc --topic 'orders-*' --group GROUP` |
| `listUser`, `listAcl`, `getUser`, `getAcl` | `sparrow token list`, `sparrow token show NAME` |
| `deleteUser` | `sparrow token revoke NAME` |
| `clusterList`, `brokerStatus`, `getBrokerConfig` | `sparrow doctor`, `sparrow settings` |
| `haStatus`, `getSyncStateSet` | `sparrow cluster status` |
"""

_NOT_RUN = {
    **dict.fromkeys(("up", "broker", "name-server", "console"), "a server; other pages start it"),
    "demo": "it takes a minute",
    "bench": "it takes ten seconds",
    "bus": "needs an application with a bus",
    "pipeline": "needs Spark, and other pages run it",
    "store": "needs databases",
    "cluster": "needs etcd and replicas",
    **dict.fromkeys((f"token {verb}" for verb in ("issue", "change", "show", "revoke")), "needs a broker with auth"),
    "message recall": "needs the handle of a delayed message",
    **dict.fromkeys(("transaction commit", "transaction rollback"), "needs a half message"),
}
"""Why the examples of a command are not run; `tests/integration/test_doc_snippets.py` runs all others."""

_MARKUP = re.compile(r"\[/?bold\]")


def page() -> str:
    """Return the text of docs/cli.md."""
    commands = list(_commands())
    parts = [_INTRODUCTION, _exit_codes(), "## Commands\n", _contents(commands)]
    parts += [_section(words, command) for words, command in commands]
    parts += ["## What --json prints\n", *_json_sections(), _MQADMIN]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _exit_codes() -> str:
    """Return a table of exit codes, with the comments of `ExitCode`."""
    source = inspect.getsource(ExitCode)
    rows = ["| Code | Meaning |", "| --- | --- |"]
    for code in ExitCode:
        found = re.search(rf'{code.name} = \d+\n    """(.*?)"""', source, re.S)
        rows.append(f"| {int(code)} | {found[1] if found else 'Done.'} |")
    return "## Exit codes\n\n" + "\n".join(rows)


def _commands() -> Iterator[tuple[str, Any]]:
    """Yield every command with its words, in the order of the help page."""
    root = typer.main.get_command(app)
    context = root.make_context("sparrow", [], resilient_parsing=True)
    for name in root.list_commands(context):
        yield from _walk(root.get_command(context, name), name, context)


def _walk(command: Any, words: str, parent: Any) -> Iterator[tuple[str, Any]]:
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        yield words, command
        return
    for name, each in subcommands.items():
        if not each.hidden:
            yield from _walk(each, f"{words} {name}", parent)


def _contents(commands: list[tuple[str, Any]]) -> str:
    rows = ["| Command | Does |", "| --- | --- |"]
    for words, command in commands:
        anchor = f"sparrow-{words}".replace(" ", "-")
        rows.append(f"| [`sparrow {words}`](#{anchor}) | {_plain(command.help or '').split(chr(10))[0]} |")
    return "\n".join(rows)


def _section(words: str, command: Any) -> str:
    lines = [f"### sparrow {words}", ""]
    text, examples = _split_examples(_plain(command.help or ""), _plain(command.epilog or ""))
    lines += [text, ""]
    if examples:
        reason = _NOT_RUN.get(words) or _NOT_RUN.get(words.split(maxsplit=1)[0])
        lines += [f"<!-- not run: {reason} -->"] if reason else []
        lines += ["```sh", *examples, "```", ""]
    rows = [_row(parameter) for parameter in command.params if parameter.name != "help" and not _is_hidden(parameter)]
    if rows:
        lines += ["| Argument or option | Meaning |", "| --- | --- |", *rows]
    return "\n".join(lines)


def _plain(text: str) -> str:
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(paragraphs)


def _split_examples(text: str, epilog: str) -> tuple[str, list[str]]:
    """Return the text without its examples, and the examples."""
    kept, examples = [], []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith(("Example:", "Examples:")):
            examples += re.findall(r"\[bold\](.*?)\[/bold\]", paragraph, re.S)
        else:
            kept.append(_MARKUP.sub("`", paragraph))
    for found in re.finditer(r"\[bold\](.*?)\[/bold\](?:   (.*))?", epilog):
        examples.append(found[1] + (f"   # {found[2]}" if found[2] else ""))
    return "\n\n".join(kept), [" ".join(example.split()) for example in examples]


def _is_hidden(parameter: Any) -> bool:
    return bool(getattr(parameter, "hidden", False))


def _row(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    names = (parameter.metavar or parameter.name).upper() if is_argument else ", ".join(parameter.opts)
    if not is_argument and parameter.secondary_opts:
        names += " / " + ", ".join(parameter.secondary_opts)
    notes = [_MARKUP.sub("`", parameter.help or "").strip()]
    default = parameter.default
    if isinstance(default, (int, float, str)) and not isinstance(default, bool) and str(default):
        notes.append(f"Default: `{default}`.")
    if isinstance(default, Path):
        notes.append(f"Default: `{default}`.")
    if parameter.required:
        notes.append("Required.")
    if parameter.envvar:
        notes.append(f"Variable `{parameter.envvar}`.")
    text = " ".join(note for note in notes if note).replace("|", "\\|")
    return f"| `{names}` | {text} |".replace("`` ", "` ")


def _json_sections() -> Iterator[str]:
    types: dict[str, type] = {}
    rows = ["| Command | Prints |", "| --- | --- |"]
    for command, printed in {**JSON_TYPES, **MORE_JSON_TYPES}.items():
        is_list = bool(get_args(printed))
        kind = get_args(printed)[0] if is_list else printed
        types.setdefault(kind.__name__, kind)
        rows.append(
            f"| `sparrow {command}` | {'a list of ' if is_list else ''}[{kind.__name__}](#{kind.__name__.lower()}) |"
        )
    yield "\n".join(rows)
    waiting = list(types.values())
    done: set[str] = set()
    while waiting:
        kind = waiting.pop(0)
        if kind.__name__ in done:
            continue
        done.add(kind.__name__)
        text, more = _fields(kind)
        waiting += more
        yield text


def _fields(kind: Any) -> tuple[str, list[Any]]:
    comments = _field_comments(kind)
    rows, more = ["| Field | Type | Meaning |", "| --- | --- | --- |"], []
    for field in msgspec.structs.fields(kind):
        more += _structs_in(field.type)
        type_text = _type_text(field.type).replace("|", "\\|")
        rows.append(f"| `{field.encode_name}` | {type_text} | {comments.get(field.name, '')} |")
    heading = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
    return f"### {kind.__name__}\n\n{heading}\n\n" + "\n".join(rows), more


def _field_comments(kind: Any) -> dict[str, str]:
    """Return the text below each field of a class, as the source has it."""
    source = inspect.getsource(kind)
    found = re.finditer(r'^    (\w+): [^\n]*\n    """(.*?)"""', source, re.S | re.M)
    return {each[1]: " ".join(each[2].split()).replace("|", "\\|") for each in found}


def _structs_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return [annotation]
    return [each for part in get_args(annotation) for each in _structs_in(part)]


def _type_text(annotation: Any) -> str:
    if hasattr(annotation, "__metadata__"):  # a number with bounds
        return _type_text(annotation.__origin__)
    arguments = get_args(annotation)
    if annotation is type(None):
        return "null"
    if not arguments:
        return str(getattr(annotation, "__name__", annotation))
    origin = getattr(annotation, "__origin__", None)
    name = getattr(origin, "__name__", "")
    parts = [_type_text(part) for part in arguments if part is not Ellipsis]
    if name in ("list", "tuple"):
        return f"list of {', '.join(parts)}"
    if name in ("dict", "Mapping"):
        return f"object: {parts[0]} to {parts[1]}"
    return " | ".join(parts)


def main() -> int:
    """Write the page, or check it."""
    os.environ.pop("SPARROW_NAME_SERVERS", None)
    text = page()
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.exists() and PAGE.read_text() == text else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
