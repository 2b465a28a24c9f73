"""Atomic writes: the old file survives every failure, and no temporary stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from focalcal import files
from focalcal.errors import InputError
from focalcal.files import atomic_path, output_paths, write_text


def test_failure_keeps_the_old_file(tmp_path):
    write_text(tmp_path / "a.txt", "old")

    def fail():
        with atomic_path(tmp_path / "a.txt") as temporary:
            temporary.write_text("half")
            raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError):
        fail()
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [f.name for f in tmp_path.iterdir()] == ["a.txt"]


def test_folders_are_made_and_permissions_are_ordinary(tmp_path):
    write_text(tmp_path / "deep" / "er" / "a.txt", "text")
    plain = tmp_path / "plain"
    plain.touch()
    assert (tmp_path / "deep/er/a.txt").stat().st_mode == plain.stat().st_mode


def test_a_killed_writer_leaves_nothing_after_the_next_write(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    code = f"""
        import time
        from focalcal.files import atomic_path
        with atomic_path({str(tmp_path / "a.txt")!r}) as temporary:
            temporary.write_text("half")
            print("writing", flush=True)
            time.sleep(60)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "writing\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert (tmp_path / "a.txt").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2
    write_text(tmp_path / "a.txt", "new")
    assert [f.read_text() for f in tmp_path.iterdir()] == ["new"]


def test_a_live_writer_is_left_alone(tmp_path):
    with atomic_path(tmp_path / "a.txt") as first:
        first.write_text("first")
        write_text(tmp_path / "a.txt", "second")
        assert first.exists()
    assert (tmp_path / "a.txt").read_text() == "first"


def test_permissions_follow_the_umask_without_touching_it(tmp_path, monkeypatch):
    # os.umask changes the whole process: a file made by another thread meanwhile was public.
    before = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", None)
        write_text(tmp_path / "a.txt", "text")
        assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o640
    finally:
        monkeypatch.undo()
        os.umask(before)


def test_no_signal_is_sent_where_it_would_end_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "POSIX", False)
    monkeypatch.setattr(os, "kill", None)
    fresh, old = (tmp_path / f".focalcal-tmp-a.txt-{pid}-x.txt" for pid in (1, 2))
    fresh.touch()
    old.touch()
    os.utime(old, (0, 0))
    write_text(tmp_path / "a.txt", "text")
    assert fresh.exists()
    assert not old.exists()


def test_a_name_with_brackets_is_cleaned_too(tmp_path):
    orphan = tmp_path / ".focalcal-tmp-a[1].txt-999999999-x.txt"
    orphan.touch()
    write_text(tmp_path / "a[1].txt", "text")
    assert [f.name for f in tmp_path.iterdir()] == ["a[1].txt"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_an_os_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        write_text(tmp_path / "a.txt", "text")


def test_an_error_names_the_file_and_not_the_temporary_beside_it(tmp_path):
    path = tmp_path / ("a" * 240 + ".txt")  # with a suffix longer than a name may be
    with pytest.raises(OSError, match="name too long") as caught:
        write_text(path, "text")
    assert caught.value.filename == str(path)


def test_a_folder_that_is_a_file_is_an_os_error(tmp_path):
    (tmp_path / "a").touch()
    with pytest.raises(OSError, match="a"):
        write_text(tmp_path / "a" / "b.txt", "text")


def test_a_folder_is_no_file_to_write(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError, match="expected a file to write, got the folder"):
        write_text(tmp_path / "a", "text")
    assert [f.name for f in tmp_path.iterdir()] == ["a"]


def test_folders_are_mirrored_and_inputs_are_safe(tmp_path):
    inputs = [tmp_path / "in/a/p.csv", tmp_path / "in/b/p.csv"]
    out = output_paths(inputs, tmp_path / "out", (".csv",))
    assert out == [tmp_path / "out/a/p.csv", tmp_path / "out/b/p.csv"]
    with pytest.raises(InputError, match="expected outputs apart from the inputs"):
        output_paths(inputs, tmp_path / "in", (".csv",))
    with pytest.raises(InputError, match="expected a folder for 2 files"):
        output_paths(inputs, tmp_path / "x.csv", (".csv",))
    assert output_paths(inputs[:1], tmp_path / "x.csv", (".csv",)) == [tmp_path / "x.csv"]
    with pytest.raises(InputError, match="expected outputs apart from the inputs"):
        output_paths(inputs[:1], inputs[0], (".csv",))
