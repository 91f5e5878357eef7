import io
import os
import tarfile
from pathlib import Path

import pytest

from sparrow.spark.runtime.tar_archive import extract


@pytest.fixture(params=["this Python", "Python 3.11.2"], autouse=True)
def _python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "Python 3.11.2":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
        # Versions that extract safely by default are set to the behaviour of older ones.
        monkeypatch.setattr(tarfile.TarFile, "extraction_filter", staticmethod(lambda member, _: member), raising=False)


def member(name: str, **fields: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def archive_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for each, data in members:
            each.size = len(data)
            archive.addfile(each, io.BytesIO(data))
    return path


def test_files_folders_and_links_are_extracted_with_the_owner_of_the_current_user(tmp_path: Path) -> None:
    archive = archive_of(
        tmp_path / "a.tar.gz",
        (member("bin", type=tarfile.DIRTYPE, mode=0o500), b""),
        (member("bin/run", mode=0o4777, uid=4711, gid=4711, uname="somebody"), b"#!/bin/sh\n"),
        (member("bin/same", type=tarfile.SYMTYPE, linkname="run"), b""),
        (member("bin/again", type=tarfile.LNKTYPE, linkname="bin/run", mode=0o755), b""),
        (member("/etc/notes", mode=0o466), b"notes"),
    )
    extract(archive, tmp_path / "out")
    run, notes = (tmp_path / "out" / name for name in ("bin/run", "etc/notes"))
    assert run.read_bytes() == b"#!/bin/sh\n"
    assert run.stat().st_mode & 0o7777 == 0o755
    assert run.stat().st_uid == os.geteuid()
    assert (run.parent / "same").readlink() == Path("run")
    assert (run.parent / "again").read_bytes() == run.read_bytes()
    assert notes.read_bytes() == b"notes", "an absolute name must be relative to the folder"
    assert notes.stat().st_mode & 0o7777 == 0o644


@pytest.mark.parametrize(
    "refused",
    [
        member("../outside"),
        member("deep/../../outside"),
        member("link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("deep/link", type=tarfile.SYMTYPE, linkname="../../outside"),
        member("hard", type=tarfile.LNKTYPE, linkname="../outside"),
        member("pipe", type=tarfile.FIFOTYPE),
        member("device", type=tarfile.CHRTYPE),
    ],
    ids=lambda each: each.name,
)
def test_a_member_outside_the_target_or_a_device_is_refused(tmp_path: Path, refused: tarfile.TarInfo) -> None:
    (tmp_path / "outside").write_text("safe")
    archive = archive_of(tmp_path / "a.tar.gz", (refused, b""))
    with pytest.raises(tarfile.TarError):
        extract(archive, tmp_path / "out")
    assert (tmp_path / "outside").read_text() == "safe"
    assert not [path for path in (tmp_path / "out").rglob("*") if not path.is_dir()]


def test_a_member_behind_a_link_to_the_outside_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "there").symlink_to(tmp_path / "elsewhere")
    archive = archive_of(tmp_path / "a.tar.gz", (member("there/file"), b"x"))
    with pytest.raises(tarfile.TarError):
        extract(archive, tmp_path / "out")
    assert not list((tmp_path / "elsewhere").iterdir())
