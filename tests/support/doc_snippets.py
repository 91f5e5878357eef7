"""Run the code blocks of a documentation page as printed, in the order printed, in an empty folder.

- `python` runs in this process, as in `python -m asyncio`: `await` is allowed. Variables of earlier blocks stay. A
  block with imports gets none of the names that earlier blocks imported: it must import all it uses.
- `sh` runs line by line. A server without `&` is started and, when it is ready, stopped with Ctrl-C; with `&` it runs
  until the end of the page, is stopped with SIGTERM, and must exit with 0. Questions are answered with y. `pip install`
  is not run; the extras that it names must exist. Commands that never end, or need a cluster or a cloud, are parsed
  with their own options, but not run.
- Any block below a line that is only a file name, such as "`shop.py`:", is written to that file.

Only ports and URLs of databases are replaced, by free ports and real databases. Above a block,
`<!-- not run: reason -->` leaves it out, and `<!-- only parsed: reason -->` parses its commands.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import typer
from tests.support.databases import _free_port
from tests.support.server_processes import SMALL_LOG
from tests.support.wait import wait_until
from typer.testing import CliRunner

from sparrow.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60.0
RUN_LANGUAGES = ("python", "sh")
PRINTED_PORTS = re.compile(r"\b(5557|9876|9877|9878|10911|10921|10931|10941|8000|8080|8765)\b")
PRINTED_DATABASES = re.compile(r"\b(mysql|postgresql)://[^\s\"'/]+/\w+")
SERVER = re.compile(r"^(\w+=\S+ )*(\.venv/bin/)?sparrow (up|broker|name-server)\b")
UNENDING_OR_REMOTE = re.compile(r"s3a://|spark://|--every|--follow")
_FENCE = re.compile(r"^```(\w*)$")
_MARKER = re.compile(r"^<!-- (not run|only parsed): .+ -->$")
_FILE_NAME = re.compile(r"^`([\w./-]+\.\w+)`:$")


class Block(NamedTuple):
    page: Path
    line: int
    """The line of the opening fence."""
    language: str
    text: str
    marker: str
    """`not run`, `only parsed`, or empty."""
    file_name: str


def blocks_of(page: Path) -> list[Block]:
    """Return the code blocks of a page."""
    found: list[Block] = []
    opened: tuple[int, str, str] | None = None
    inside: list[str] = []
    before = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if opened is not None and line == "```":
            at, language, above = opened
            marker, name = _MARKER.match(above), _FILE_NAME.match(above)
            text = "".join(f"{each}\n" for each in inside)
            found.append(Block(page, at, language, text, marker[1] if marker else "", name[1] if name else ""))
            opened, inside, before = None, [], ""
        elif opened is not None:
            inside.append(line)
        elif fence := _FENCE.match(line):
            opened = (number, fence[1], before)
        else:
            before = line.strip() or before
    assert opened is None, f"{page}: the block in line {opened[0]} does not end"
    return found


@dataclass
class PageRun:
    """A page that is being run."""

    folder: Path
    new_database: Callable[[str], str]
    """Returns the URL of an empty database of a kind, `mysql` or `postgresql`."""

    def __post_init__(self) -> None:
        self._replaced: dict[str, str] = {}
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._imported: set[str] = set()
        self._numbers = itertools.count(1)
        self._started: list[tuple[str, subprocess.Popen[bytes], Path]] = []
        self.environment = {
            "SPARROW_NAME_SERVERS": f"127.0.0.1:{self._port('9876')}",
            "SPARROW_NAME_SERVER__PORT": self._port("9876"),
            "SPARROW_BROKER__PORT": self._port("10911"),
            "SPARROW_CONSOLE__PORT": self._port("8765"),
            "UVICORN_PORT": self._port("8000"),
            **{f"SPARROW_LOG__{name}": str(value) for name, value in SMALL_LOG.items()},
        }

    def run_page(self, page: Path) -> None:
        """Run all blocks of a page."""
        for block in blocks_of(page):
            try:
                self._run(block)
            except Exception as error:
                error.add_note(f"{page.relative_to(ROOT)}, line {block.line}")
                raise

    def _run(self, block: Block) -> None:
        """Run one block, or write it to its file."""
        if block.marker == "not run":
            return
        text = self.localize(block.text)
        if block.file_name:
            (self.folder / block.file_name).write_text(text, encoding="utf-8")
            check_file(block.file_name, text)
        elif block.language == "python":
            self._run_python(block, text)
        elif block.language == "sh":
            for line in commands_of(text):
                if block.marker or UNENDING_OR_REMOTE.search(line):
                    check_command(line)
                else:
                    self._run_command(line)

    def localize(self, text: str) -> str:
        """Return a text with free ports and real databases in place of the printed ones."""
        text = PRINTED_PORTS.sub(lambda found: self._port(found[0]), text)
        return PRINTED_DATABASES.sub(lambda found: self._database(found[0], found[1]), text)

    def stop(self) -> None:
        """Stop what is still running, the newest first; fail if it does not end well."""
        failed = []
        while self._started:
            line, process, output = self._started.pop()
            process.terminate()
            try:
                code = process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = process.wait()
            if code != 0 and not (line.startswith("uvicorn") and code == -signal.SIGTERM):  # uvicorn ends by the signal
                failed.append(f"{line}\nexit status {code}\n{output.read_text()}")
        assert not failed, "\n".join(failed)

    def _run_python(self, block: Block, text: str) -> None:
        imported = imported_names(ast.parse(text))
        if imported:
            self._names = {name: value for name, value in self._names.items() if name not in self._imported}
        self._imported |= imported
        # The empty lines and the path make tracebacks show the lines of the page.
        source, flags = "\n" * block.line + text, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(source, str(block.page), "exec", flags=flags, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, self._names))
        else:
            exec(code, self._names)

    def _run_command(self, line: str) -> None:
        if check_install(line):
            return
        if line.startswith("export "):
            self.environment |= dict(word.split("=", 1) for word in shlex.split(line)[1:])
            return
        command = line.removesuffix("&").strip().replace(".venv/bin/", "")
        if line.endswith("&"):
            self._start(command)
        elif SERVER.match(command):
            self._start(command)
            _, process, output = self._started.pop()
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(TIMEOUT_S) == 0, f"{line}\n{output.read_text()}"
        else:
            code, said = (self._run_in_bash if needs_shell(command) else self._run_here)(command)
            print(f"$ {line}\n{said}")  # pytest shows it if a later block fails
            assert code == 0, f"exit status {code} of: {line}\n{said}"

    def _run_here(self, command: str) -> tuple[int, str]:
        """Run a command of Sparrow in this process, which saves the start of another Python."""
        done = CliRunner(env={**self.environment, "COLUMNS": "200"}).invoke(app, shlex.split(command)[1:], input="y\n")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.output

    def _run_in_bash(self, command: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", f"set -e -o pipefail\n{command}"],
            cwd=self.folder,
            env=self._process_environment(),
            input="y\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return done.returncode, done.stdout

    def _start(self, command: str) -> None:
        output = self.folder / f"process-{next(self._numbers)}.log"
        with output.open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"exec env {command}"],
                cwd=self.folder,
                env=self._process_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append((command, process, output))
        if SERVER.match(command):
            wait_until(lambda: "\nready" in f"\n{output.read_text()}" or process.poll() is not None, within_s=TIMEOUT_S)
            assert process.poll() is None, f"{command}\n{output.read_text()}"

    def _process_environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        modules = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        return {**inherited, **self.environment, "PATH": path, "PYTHONPATH": modules, "COLUMNS": "200"}

    def _port(self, printed: str) -> str:
        if printed not in self._replaced:
            self._replaced[printed] = str(_free_port())
        return self._replaced[printed]

    def _database(self, printed: str, kind: str) -> str:
        if printed not in self._replaced:
            self._replaced[printed] = self.new_database(kind)
        return self._replaced[printed]


@contextmanager
def running_page(folder: Path, new_database: Callable[[str], str]) -> Iterator[PageRun]:
    """Yield a page to run blocks of; at the end, stop the servers that it has started."""
    page = PageRun(folder, new_database)
    try:
        yield page
    finally:
        page.stop()


def commands_of(text: str) -> list[str]:
    """Return the commands of a block of shell lines, without comments."""
    lines = [re.sub(r"(^|\s)#.*$", "", line).strip() for line in text.splitlines()]
    return [line for line in lines if line]


def needs_shell(command: str) -> bool:
    """Return whether a line is more than a command of Sparrow and its arguments."""
    words = shlex.shlex(command, posix=True, punctuation_chars=True)
    return not command.startswith("sparrow ") or "$" in command or any(word in ("|", ">", "<", "&&") for word in words)


def check_install(line: str) -> bool:
    """Return whether a command installs Sparrow; fail if it names an extra that does not exist."""
    words = shlex.split(line)
    if words[:2] != ["pip", "install"]:
        return False
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extras in re.findall(r"(?:sparrowmq|\.)\[([\w,]+)\]", line):
        assert set(extras.split(",")) <= set(known), line
    return True


def check_command(line: str) -> None:
    """Parse a command of Sparrow with its own parser; fail if an option or an argument is wrong."""
    words = shlex.split(line)
    assert words[0] == "sparrow", f"cannot parse {line}"
    command: Any = typer.main.get_command(app)
    words, parent = words[1:], None
    while hasattr(command, "commands"):  # a group
        context = command.make_context(command.name, list(words), parent=parent)
        _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
        parent = context
    command.make_context(command.name, words, parent=parent)


def check_file(name: str, text: str) -> None:
    """Check that the text of a file is what its name says."""
    if name.endswith(".py"):
        compile(text, name, "exec")
    elif name.endswith(".toml"):
        tomllib.loads(text)


def imported_names(tree: ast.Module) -> set[str]:
    """Return the names that the import statements of a program bind."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {(each.asname or each.name).partition(".")[0] for node in imports for each in node.names}
