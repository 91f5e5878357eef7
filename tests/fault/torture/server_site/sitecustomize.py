"""Python imports this module at the start of a server process whose PYTHONPATH has this folder.

1. The wall clock of the process differs from the machine's by the nanoseconds in the file that SPARROW_TEST_CLOCK
   names. `tests.fault.torture.wall_clock` writes it while the process runs. Monotonic clocks are not changed.
2. On SIGUSR1 the process prints where its asyncio tasks are: what a server that does not end is waiting for.
"""

import mmap
import os
import signal
import time

_path = os.environ.get("SPARROW_TEST_CLOCK")
if _path:
    with open(_path, "rb") as _file:
        _offset = mmap.mmap(_file.fileno(), 8, access=mmap.ACCESS_READ)
    _real_time_ns = time.time_ns

    def _time_ns() -> int:
        return _real_time_ns() + int.from_bytes(_offset[:], "little", signed=True)

    def _time() -> float:
        return _time_ns() / 1e9

    def _print_tasks(_number: int, _frame: object) -> None:
        import asyncio
        import sys

        for task in asyncio.all_tasks():
            waits, lines = task.get_coro(), []
            while (frame := getattr(waits, "cr_frame", None)) is not None:
                lines.append(f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}")
                waits = waits.cr_await
            print(task.get_name(), *lines, f"  {waits!r}", sep="\n", file=sys.stderr, flush=True)

    time.time_ns, time.time = _time_ns, _time
    signal.signal(signal.SIGUSR1, _print_tasks)
