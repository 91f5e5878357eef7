"""Python imports this module at the start of a server process whose PYTHONPATH has this folder.

The wall clock of the process then differs from the machine's by the nanoseconds in the file that SPARROW_TEST_CLOCK
names. `tests.fault.torture.wall_clock` writes that file while the process runs. Monotonic clocks are not changed.
"""

import mmap
import os
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

    time.time_ns, time.time = _time_ns, _time
