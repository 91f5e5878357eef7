"""Sparrow and its peers, all real servers on loopback, in interleaved rounds; both sides of a ratio sync, or neither.

    python -m bench.versus                  # all peers: about an hour; what is missing is fetched into build/
    python -m bench.versus rocketmq kafka   # only these
    python -m bench.versus rocketmq --only batches   # only work loads with this text in their name

It prints a table for each work load, and writes build/bench/versus.json, versus.md and plots. A peer that this machine
cannot have is named with the reason. The exit status is 1 if a work load failed; a missed goal is no failure.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from importlib import import_module

from bench._harness import folder_on_disk, is_smoke, write_rows
from bench.versus.peers.peer import PeerMissing
from bench.versus.plots import draw
from bench.versus.report import print_tables, rows, write_markdown
from bench.versus.run import Run, say
from bench.versus.workload import FULL, SMOKE

SECTIONS = {
    "rocketmq": "rocketmq.compare",
    "kafka": "kafka.compare",
    "nats": "brokers.compare_nats",
    "redis": "brokers.compare_redis",
    "rabbitmq": "brokers.compare_rabbitmq",
    "tasks": "tasks.compare",
    "spark": "spark.compare",
}
"""The function of each section, below `bench.versus.sections`: a section imports its libraries only if it runs."""


def compare(run: Run, name: str) -> None:
    module, _, function = SECTIONS[name].partition(".")
    getattr(import_module(f"bench.versus.sections.{module}"), function)(run)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.versus", description=__doc__.partition("\n")[0])
    parser.add_argument("peers", nargs="*", help=f"some of {', '.join(SECTIONS)}; all of them, if none is named")
    parser.add_argument("--smoke", action="store_true", help="a second a work load, with what is installed already")
    parser.add_argument("--only", default="", metavar="TEXT", help="only work loads with this text in their name")
    parser.add_argument("--rounds", type=int, help=f"rounds of each work load ({FULL.rounds})")
    parser.add_argument("--seconds", type=float, help=f"seconds of a round ({FULL.seconds})")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.peers if name not in SECTIONS]:
        parser.error(f"no peer is named {', '.join(unknown)}; choose from {', '.join(SECTIONS)}")
    scale = SMOKE if is_smoke() else FULL
    changes = {"rounds": chosen.rounds, "seconds": chosen.seconds}
    scale = scale._replace(**{name: value for name, value in changes.items() if value is not None})
    with folder_on_disk() as scratch:
        run = Run(scale, scratch, only=chosen.only)
        run.describe("machine", f"{os.cpu_count()} cores, {os.uname().sysname} {os.uname().release}")
        for name in chosen.peers or SECTIONS:
            run.attempt(name, partial(compare, run, name))
    print_tables(run)
    written = write_rows("versus", rows(run))
    write_markdown(run, written.with_suffix(".md"))
    say(f"written: {written}, {written.with_suffix('.md')}")
    try:
        for plot in draw(run, written.parent):
            say(f"written: {plot}")
    except PeerMissing as reason:
        say(f"no plots: {reason}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
