"""Kernel calls for mapped pages and files."""

import mmap
import os

import pytest

from sparrow.store.log.commit_log import mapped_pages

SIZE = 1 << 16


@pytest.fixture
def fd(tmp_path):
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@pytest.fixture
def full(fd):
    """A file filled with ones."""
    os.pwrite(fd, b"\1" * SIZE, 0)
    os.fsync(fd)
    return fd


@pytest.fixture
def mapping(fd):
    mapped_pages.allocate(fd, 0, SIZE)
    return mmap.mmap(fd, SIZE)


@pytest.fixture(params=["the kernel's way", "by hand"])
def either_way(request, monkeypatch):
    """With the calls of Linux, and with the fallback for kernels that cannot punch holes."""
    if request.param == "by hand":
        monkeypatch.setattr(mapped_pages, "_libc", None)


def test_an_allocated_range_has_real_blocks_and_zeros(fd):
    os.ftruncate(fd, 2 * SIZE)
    mapped_pages.allocate(fd, SIZE // 2, SIZE)
    stat = os.fstat(fd)
    assert stat.st_size == 2 * SIZE
    assert SIZE <= stat.st_blocks * 512 < 2 * SIZE
    assert os.pread(fd, 2 * SIZE, 0) == bytes(2 * SIZE)


def test_allocating_keeps_the_data(fd):
    os.pwrite(fd, b"start", 0)
    mapped_pages.allocate(fd, 0, SIZE)
    assert os.pread(fd, SIZE, 0) == b"start".ljust(SIZE, b"\0")


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    ("at", "length"),
    [(0, SIZE), (4096, 8192), (1, 4095), (5000, 20), (5000, 30000), (SIZE - 1, 1), (0, 1), (12345, SIZE - 12345)],
)
def test_erase_writes_zeros_and_changes_nothing_else(full, at, length):
    mapped_pages.erase(full, at, length)
    assert os.pread(full, SIZE + 1, 0) == b"\1" * at + bytes(length) + b"\1" * (SIZE - at - length)


def test_erasing_keeps_the_size_and_gives_the_blocks_back(full):
    mapped_pages.erase(full, 4096, SIZE - 4096)
    stat = os.fstat(full)
    assert stat.st_size == SIZE
    assert stat.st_blocks * 512 < SIZE


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("length", [0, -1])
def test_erasing_zero_bytes_changes_nothing(full, length):
    mapped_pages.erase(full, 100, length)
    assert os.pread(full, SIZE, 0) == b"\1" * SIZE


def test_the_fallback_erases_ranges_longer_than_its_buffer(fd, monkeypatch):
    monkeypatch.setattr(mapped_pages, "_libc", None)
    size = (2 << 20) + 100
    os.pwrite(fd, b"\1" * size, 0)
    mapped_pages.erase(fd, 10, size - 20)
    assert os.pread(fd, size, 0) == b"\1" * 10 + bytes(size - 20) + b"\1" * 10


def test_a_mapping_sees_that_its_file_was_erased(fd, mapping):
    mapping[:] = b"\1" * SIZE
    mapped_pages.erase(fd, 4000, 5000)
    assert mapping[:] == b"\1" * 4000 + bytes(5000) + b"\1" * (SIZE - 9000)


def test_populate_returns_whether_it_succeeded_and_changes_no_byte(mapping):
    mapping[:5] = b"start"
    for at, length in ((0, SIZE), (100, 1), (5000, 10000), (SIZE - 1, 1)):
        assert isinstance(mapped_pages.populate(mapping, at, length), bool)
    assert mapping[:] == b"start".ljust(SIZE, b"\0")


@pytest.mark.parametrize("call", [mapped_pages.populate, mapped_pages.lock, mapped_pages.unlock])
def test_pages_past_the_end_are_ignored(mapping, call):
    assert isinstance(call(mapping, SIZE - 100, 1 << 30), bool)
    assert call(mapping, SIZE, 4096) is True


@pytest.mark.parametrize("call", [mapped_pages.populate, mapped_pages.lock, mapped_pages.unlock])
def test_a_mapping_can_be_closed_afterwards(mapping, call):
    call(mapping, 0, SIZE)
    mapping.close()
    assert mapping.closed


@pytest.mark.parametrize("call", [mapped_pages.populate, mapped_pages.lock, mapped_pages.unlock])
def test_without_a_linux_libc_the_call_returns_false(mapping, call, monkeypatch):
    monkeypatch.setattr(mapped_pages, "_libc", None)
    assert call(mapping, 0, SIZE) is False
