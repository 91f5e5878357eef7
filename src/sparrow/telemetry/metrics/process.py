"""The metrics of every process: CPU, memory, files, garbage collection and the event loop."""

from __future__ import annotations

from sparrow.telemetry.histogram import SECONDS_BOUNDS
from sparrow.telemetry.metric import Metric

BUILD = Metric("sparrow_build_info", "gauge", "Always 1; the labels tell the versions.", ("version", "python"))
CPU_SECONDS = Metric("process_cpu_seconds_total", "counter", "CPU time of the process.", (), "seconds")
RESIDENT_BYTES = Metric("process_resident_memory_bytes", "gauge", "Resident memory.", (), "bytes")
START_TIME = Metric("process_start_time_seconds", "gauge", "Start of the process, in Unix time.", (), "seconds")
OPEN_FILES = Metric("process_open_fds", "gauge", "Open file descriptors.", (), "files")
MAX_FILES = Metric("process_max_fds", "gauge", "The limit of open file descriptors.", (), "files")
THREADS = Metric("sparrow_threads", "gauge", "Threads of the process.", (), "threads")
LOOP_DELAY = Metric(
    "sparrow_loop_delay_seconds",
    "histogram",
    "How late the event loop ran a timer: ten times a second.",
    (),
    "seconds",
    SECONDS_BOUNDS,
)
GC_COLLECTIONS = Metric(
    "python_gc_collections_total", "counter", "Runs of the garbage collector.", ("generation",), "runs"
)
GC_COLLECTED = Metric(
    "python_gc_objects_collected_total",
    "counter",
    "Objects that the garbage collector freed.",
    ("generation",),
    "objects",
)
GC_PAUSE = Metric(
    "sparrow_gc_pause_seconds",
    "histogram",
    "How long runs of the garbage collector took.",
    (),
    "seconds",
    SECONDS_BOUNDS,
)

PROCESS_METRICS = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
