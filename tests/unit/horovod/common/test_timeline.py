"""Timelines of several lives of a job have a file each."""

from __future__ import annotations

from pathlib import Path

from horovod.common.timeline import Files


def test_a_job_that_goes_on_writes_over_no_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    for expected in ("t.json", "t.1.json", "t.2.json"):
        files = Files()  # of another process each time
        claimed = Path(files.claim(str(path), keep=True, keep_others=True))
        assert claimed.name == expected
        claimed.write_text("[]")
        files.release()


def test_another_job_replaces_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("[]")
    files = Files()
    assert files.claim(str(path), keep=True) == str(path)
    files.release()
