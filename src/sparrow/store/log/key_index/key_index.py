"""The key index: all its files, oldest first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sparrow.store.log.key_index.index_file import IndexCheckpoint, IndexFile
from sparrow.wire import columns

_ENTRIES_AT_ONCE = 1 << 16


class KeyIndex:
    """The files of the index. Written by one thread at a time."""

    def __init__(self, directory: Path, slots: int, entries: int) -> None:
        self.directory, self._slots, self._entries = directory, slots, entries
        self.files: list[IndexFile] = []

    def load(self, mark: IndexCheckpoint | None, *, trust: bool) -> bool:
        """Open the files; return False if they do not match the checkpoint `mark` and must be rebuilt.

        `trust` says that the last stop was clean; else everything after the checkpoint is dropped.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        paths = sorted(path for path in self.directory.iterdir() if path.name.isascii() and path.name.isdecimal())
        if not trust:
            known = [path for path in paths if mark is not None and path.name <= mark.file]
            for path in paths[len(known) :]:
                path.unlink()
            paths = known
        self.files = [IndexFile(path, self._slots, self._entries) for path in paths]
        if mark is not None and not self._is_as_marked(mark):
            return False
        if self.files:
            self.files[-1].open_for_writing(count=mark.count if mark is not None and not trust else None)
        return True

    def _is_as_marked(self, mark: IndexCheckpoint) -> bool:
        if not self.files or self.files[-1].path.name != mark.file or self.files[-1].count < mark.count:
            return False
        return all(file.count > 1 and file.is_whole for file in self.files[:-1]) and self.files[-1].is_whole

    @property
    def end_offset(self) -> int:
        """The physical offset of the last record in the index, or -1."""
        return max((file.end_offset for file in self.files if file.count > 1), default=-1)

    @property
    def last_ms(self) -> int:
        """The store time of the last record in the index."""
        return max((file.end_ms for file in self.files), default=0)

    def put_keys(self, records: columns.LogRecords, base: int) -> None:
        """Add the keys of records, in log order. `base`: the physical offset of the first byte of their buffer."""
        if len(records):
            rows, hashes = records.keys().hashes()
            self.put(hashes, (records.starts + base)[rows], records.field("store_ms")[rows])

    def put(
        self, hashes: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], store_ms: npt.NDArray[np.int64]
    ) -> None:
        """Add keys of records, in log order."""
        at = 0
        while at < len(hashes):
            file = self._writable()
            end = at + file.entries_max - file.count
            if end < len(hashes):
                # Keep the keys of a record in one file, so that indexing can resume after `end_offset`.
                while end > at and offsets[end] == offsets[end - 1]:
                    end -= 1
                if end == at and file.count > 1:
                    self._leave(file)
                    continue
                if end == at:  # one record has more keys than fit into a file
                    end = at + file.entries_max - file.count
            file.put(hashes[at:end], offsets[at:end], store_ms[at:end])
            at = min(end, len(hashes))

    def _writable(self) -> IndexFile:
        if self.files and not self.files[-1].is_full and self.files[-1].slots is not None:
            return self.files[-1]
        if self.files:
            self._leave(self.files[-1])
        file = IndexFile(self._new_path(), self._slots, self._entries)
        file.open_for_writing()
        self.files = [*self.files, file]
        return file

    def _leave(self, file: IndexFile) -> None:
        file.write_slots()
        file.sync()
        file.slots = None
        file.entries_max = file.count if file.count > 1 else file.entries_max

    def _new_path(self) -> Path:
        """Return a name made of the local time, as `yyyyMMddHHmmssSSS`; names ascend even if the clock does not."""
        now = time.time()
        name = time.strftime("%Y%m%d%H%M%S", time.localtime(now)) + f"{int(now * 1000) % 1000:03d}"
        if self.files:
            name = max(name, str(int(self.files[-1].path.name) + 1).zfill(17))
        return self.directory / name

    def candidates(self, key_hash: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Return physical offsets of entries with a hash and a store time, newest first."""
        found: list[int] = []
        for file in reversed(self.files):
            if len(found) >= limit:
                break
            if file.count > 1 and file.begin_ms - 1000 <= end_ms and file.end_ms + 1000 >= begin_ms:
                found += file.offsets_of(key_hash, begin_ms, end_ms, limit - len(found))
        return found

    def entries_between(self, start: int, end: int) -> Iterator[npt.NDArray[np.void]]:
        """Yield the entries of records between two physical offsets, in log order."""
        for file in self.files:
            if file.count > 1 and file.begin_offset < end and file.end_offset >= start:
                number, stop = file.first_entry_from(start), file.first_entry_from(end)
                while number < stop and len(entries := file.read(number, min(_ENTRIES_AT_ONCE, stop - number))):
                    yield entries
                    number += len(entries)

    def truncate(self, log_end: int) -> None:
        """Drop entries that point to `log_end` or later, where the log now ends."""
        while self.files and self.files[-1].begin_offset >= log_end and self.files[-1].count > 1:
            self.files[-1].delete()
            self.files = self.files[:-1]
        if not self.files:
            return
        newest = self.files[-1]
        newest.entries_max = self._entries
        newest.open_for_writing(count=newest.first_entry_from(log_end))
        newest.write_slots()

    def drop_files_before(self, log_first: int) -> None:
        """Delete files whose entries all point before the log's first byte, never the newest."""
        while len(self.files) > 1 and self.files[0].end_offset < log_first:
            self.files[0].delete()
            self.files = self.files[1:]

    def mark(self) -> IndexCheckpoint | None:
        """Make the index durable, and return its checkpoint."""
        if not self.files:
            return None
        newest = self.files[-1]
        newest.sync()
        return IndexCheckpoint(newest.path.name, newest.count)

    def clear(self) -> None:
        for file in self.files:
            file.delete()
        self.files = []

    def close(self) -> None:
        for file in self.files:
            file.write_slots()
            file.close()
        self.files = []
