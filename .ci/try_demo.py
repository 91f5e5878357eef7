"""Run `make run` in a terminal for a minute, as a newcomer does.

Spark's windows must appear on the screen, Ctrl-C must stop everything in order, and no process may be left behind.
This needs nothing but Python: it also runs where Sparrow is not installed yet.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUN_S = 60.0
"""How long the demo runs at least."""
WINDOWS_S = 600.0
"""How long the first window may take: `make run` may have to install packages, and the machine may be busy."""
STOP_S = 60.0
"""How long everything may take to stop."""
CTRL_C = b"\x03"
ROWS, COLUMNS = 60, 160
"""Of the terminal: tables that do not fit are cut."""
LINES_SHOWN = 30
FREE_PORTS = {"SPARROW_NAME_SERVER__PORT": "0", "SPARROW_BROKER__PORT": "0"}
"""The usual ones may be in use on this machine."""

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
WINDOWS = re.compile(r"Spark\s+has\s+read\s+[1-9]")
TROUBLE = re.compile(r"Traceback|make: \*\*\* .*Error")


class Terminal:
    """A command in a terminal of its own, and what it has printed."""

    def __init__(self, *command: str) -> None:
        self.output = ""
        self._status: int | None = None
        self.process, self._screen = pty.fork()
        if self.process == 0:
            os.chdir(ROOT)
            os.execvpe(command[0], command, {**os.environ, "TERM": "xterm", **FREE_PORTS})
        fcntl.ioctl(self._screen, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    @property
    def text(self) -> str:
        return CONTROL.sub("", self.output)

    def read(self, seconds: float) -> None:
        """Read what is printed within a time."""
        if not select.select([self._screen], [], [], seconds)[0]:
            return
        try:
            self.output += os.read(self._screen, 1 << 16).decode(errors="replace")
        except OSError:  # no process has the terminal open any more
            time.sleep(seconds)

    def press(self, key: bytes) -> None:
        os.write(self._screen, key)

    def status(self) -> int | None:
        """Return the exit status as a shell reports it; None while the command runs."""
        if self._status is None:
            process, status = os.waitpid(self.process, os.WNOHANG)
            if process:
                code = os.waitstatus_to_exitcode(status)
                self._status = code if code >= 0 else 128 - code
        return self._status


def demo_processes() -> list[str]:
    """Return the command lines of the demo's processes that run from this checkout."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            here = (folder / "cwd").resolve() == ROOT
        except OSError:  # it has ended, or belongs to another user
            continue
        if here and ("sparrow demo" in command or "revenue_pipeline" in command):
            found.append(f"{folder.name} {command}")
    return found


def trouble_in(demo: Terminal, begun: float) -> str | None:
    """Return what went wrong; None if nothing did."""
    while not WINDOWS.search(demo.text) or time.monotonic() - begun < RUN_S:
        demo.read(0.5)
        if (status := demo.status()) is not None:
            return f"it ended by itself, with status {status}"
        if time.monotonic() - begun > WINDOWS_S and not WINDOWS.search(demo.text):
            return f"no window of Spark within {WINDOWS_S:.0f} s"
    print(f"make run: Spark's windows are shown; Ctrl-C after {time.monotonic() - begun:.0f} s", flush=True)
    demo.press(CTRL_C)
    pressed = time.monotonic()
    while demo.status() is None:
        demo.read(0.5)
        if time.monotonic() - pressed > STOP_S:
            return f"it does not stop within {STOP_S:.0f} s of Ctrl-C"
    # Make ends by the signal itself (130), whatever its command does; that one's failure would be in the text.
    if demo.status() not in (0, 128 + signal.SIGINT) or TROUBLE.search(demo.text):
        return f"Ctrl-C ended it with status {demo.status()}"
    if left := demo_processes():
        return "processes are left behind: " + "; ".join(left)
    print(f"make run: stopped in order within {time.monotonic() - pressed:.0f} s", flush=True)
    return None


def main() -> int:
    begun = time.monotonic()
    demo = Terminal("make", "run")
    trouble = trouble_in(demo, begun)
    print("\n".join(demo.text.splitlines()[-LINES_SHOWN:]))
    if trouble is not None:
        print(f"make run failed: {trouble}")
        if demo.status() is None:
            os.killpg(demo.process, signal.SIGKILL)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
