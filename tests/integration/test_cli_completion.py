"""Completion in the shell: the scripts of `sparrow --show-completion`, run by bash and zsh, against a live platform."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.support.databases import ServerNotInstalled, _program
from tests.support.wait import wait_until

from sparrow import Admin
from sparrow.testing.platform import RunningPlatform, run_platform

WITHIN_S = 90
"""A name server that does not answer within half a second is not waited for: the user would press the key again."""
BASH = """
eval "$SCRIPT"
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_sparrow_completion sparrow
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
compdef() { }
_arguments() { print -r -- "$1" }
eval "$SCRIPT"
words=("$@")
CURRENT=$#
_sparrow_completion
"""
"""Only what zsh's line editor provides is replaced: the function that registers, and the one that shows."""


@pytest.fixture(scope="module")
def platform() -> Iterator[RunningPlatform]:
    with run_platform() as running:
        with Admin(running.name_servers) as admin:
            admin.create_topic("orders", 1)
            admin.create_topic("orphans", 1)
            admin.create_topic("alarms", 1)
            admin.reset_offsets("billing", "orders", "first")
        yield running


ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@cache
def script_for(shell: str) -> str:
    """Return what `sparrow --show-completion` prints in a shell."""
    environment = ENVIRONMENT | {"_SPARROW_COMPLETE": f"source_{shell}"}
    return subprocess.run(["sparrow"], env=environment, capture_output=True, text=True, check=True).stdout


def completions(shell: str, program: str, name_servers: str, *words: str) -> list[str]:
    """Return what the shell offers for the last word."""
    name = Path(shell).name
    environment = ENVIRONMENT | {"SPARROW_NAME_SERVERS": name_servers, "SCRIPT": script_for(name)}
    words = (shell, "--norc" if name == "bash" else "-f", "-c", program, name, "sparrow", *words)
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == "", done.stderr
    return done.stdout.split("\n")[:-1]


@pytest.mark.thorough
def test_bash_completes_commands_topics_and_groups(platform: RunningPlatform) -> None:
    def offered(*words: str) -> list[str]:
        return completions("bash", BASH, platform.name_servers, *words)

    assert set(offered("to")) == {"topic", "token"}
    assert offered("topic", "sh") == ["show"]
    wait_until(lambda: offered("topic", "show", "or") == ["orders", "orphans"], within_s=WITHIN_S)
    wait_until(lambda: offered("group", "show", "bil") == ["billing"], within_s=WITHIN_S)


@pytest.mark.thorough
def test_zsh_completes_commands_and_topics(platform: RunningPlatform) -> None:
    try:
        zsh = str(_program("zsh", "zsh", ("zsh",)))
    except ServerNotInstalled as missing:
        if os.environ.get("CI"):  # in CI, a skipped test would hide a gap
            raise
        pytest.skip(str(missing))

    def offered(*words: str) -> str:
        (shown,) = completions(zsh, ZSH, platform.name_servers, *words)
        return shown

    assert '"topic":"List, show, create' in offered("to")
    wait_until(lambda: offered("topic", "show", "orp") == '*: :(("orphans"))', within_s=WITHIN_S)


def test_completion_is_silent_without_a_platform() -> None:
    assert completions("bash", BASH, "127.0.0.1:1", "topic", "show", "or") == [""]
