"""Only one process at a time uses a store directory."""

import subprocess
import sys

import pytest

from sparrow.model.errors import StoreInUse
from sparrow.store.log.directory_lock import DirectoryLock

OTHER_PROCESS = """
import sys
from pathlib import Path
from sparrow.model.errors import StoreInUse
from sparrow.store.log.directory_lock import DirectoryLock
try:
    folder = DirectoryLock(Path(sys.argv[1]))
except StoreInUse as error:
    print("in use by", error.pid)
else:
    folder.mark_open()
    print("entered", flush=True)
    sys.stdin.read()
"""


def other_process(path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )


def test_a_directory_held_by_another_process_is_refused_with_its_pid(tmp_path):
    with other_process(tmp_path) as other:
        assert other.stdout.readline() == "entered\n"
        with pytest.raises(StoreInUse) as caught:
            DirectoryLock(tmp_path)
        assert caught.value.pid == str(other.pid)
        other.kill()
    folder = DirectoryLock(tmp_path)  # the lock ends with its process
    assert (tmp_path / "abort").exists()
    folder.release(is_clean=True)


def test_another_process_cannot_take_the_lock(tmp_path):
    folder = DirectoryLock(tmp_path)
    folder.mark_open()
    with other_process(tmp_path) as other:
        assert other.stdout.readline().startswith("in use by ")
    with pytest.raises(StoreInUse):
        DirectoryLock(tmp_path)  # neither can this process, under any path
    with pytest.raises(StoreInUse):
        DirectoryLock(tmp_path / "sub" / "..")
    with other_process(tmp_path) as other:
        assert other.stdout.readline().startswith("in use by "), "a second attempt must not release the lock"
    folder.release(is_clean=True)
    with other_process(tmp_path) as other:
        assert other.stdout.readline() == "entered\n"


def test_only_a_clean_release_removes_the_abort_file(tmp_path):
    folder = DirectoryLock(tmp_path)
    assert not (tmp_path / "abort").exists()
    folder.mark_open()
    assert (tmp_path / "abort").exists()
    folder.release(is_clean=False)
    assert (tmp_path / "abort").exists()
    folder = DirectoryLock(tmp_path)
    folder.release(is_clean=True)
    folder.release(is_clean=True)
    assert not (tmp_path / "abort").exists()
    assert (tmp_path / "lock").read_bytes() == b"lock"
