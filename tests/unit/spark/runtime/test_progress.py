"""Progress of Spark queries, and the summary of their errors."""

import os
import signal

from sparrow.spark.runtime.progress import deferred_interrupts, lag_between
from sparrow.spark.runtime.spark_errors import summarize_error


def test_a_sparrow_error_in_the_trace_is_the_summary() -> None:
    trace = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_ERROR] Failed:
Traceback (most recent call last):
  File "worker.py", line 3, in main
    raise UnknownTopic(name)
sparrow.model.errors.UnknownTopic: topic 'nope' does not exist: create it, or switch on automatic creation
 SQLSTATE: 38000
\tat org.apache.spark.sql.Thing(Thing.scala:1)
Caused by: java.lang.Exception: something else"""
    assert summarize_error(trace) == "topic 'nope' does not exist: create it, or switch on automatic creation"


def test_the_last_of_several_python_errors_is_the_summary() -> None:
    trace = """Traceback (most recent call last):
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "x.py", line 1, in <module>
ValueError: no such column
\tat org.apache.spark.X(X.scala)"""
    assert summarize_error(trace) == "ValueError: no such column"


def test_without_a_python_error_the_first_line_is_the_summary() -> None:
    trace = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Several queries use it. SQLSTATE: X
=== Streaming Query ===
Identifier: q"""
    assert summarize_error(trace) == "Several queries use it. SQLSTATE: X"
    assert summarize_error("\tat a.b(C.java:1)\n\njava.io.IOException: no space") == "java.io.IOException: no space"
    assert summarize_error("") == "Spark gave no reason"


def test_lag_is_the_distance_of_two_offsets_and_ignores_new_queues() -> None:
    end = '{"v": 1, "q": {"t/b/0": 5, "t/b/1": 7}, "from": {}}'
    latest = '{"v": 1, "q": {"t/b/0": 9, "t/b/1": 7, "t/b/2": 4}, "from": {}}'
    assert lag_between(end, latest) == 4
    assert lag_between(latest, end) == 0


def test_offsets_of_other_sources_give_no_lag() -> None:
    assert lag_between('{"orders": {"0": 5}}', '{"orders": {"0": 9}}') is None
    assert lag_between("12", "14") is None
    assert lag_between(None, None) is None


def test_the_first_interrupt_is_deferred_and_the_next_has_its_usual_effect() -> None:
    before = signal.getsignal(signal.SIGINT)
    with deferred_interrupts() as is_asked:
        assert not is_asked()
        os.kill(os.getpid(), signal.SIGINT)
        assert is_asked()
        assert signal.getsignal(signal.SIGINT) is before
    with deferred_interrupts() as is_asked:
        assert not is_asked()
    assert signal.getsignal(signal.SIGINT) is before
