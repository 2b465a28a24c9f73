"""Files that are damaged, hostile or simply wrong are refused with a message that says why."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from focalcal.errors import FileFormatError, MissingExtraError
from focalcal.formats import read_table, write_table
from focalcal.predictions import Predictions


class Bomb:
    """Unpickling it creates a file: the test sees whether anything executed it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_pickles_in_an_npz_are_refused_and_never_run(tmp_path):
    trap = tmp_path / "ran"
    np.savez(tmp_path / "p.npz", logits=np.array([Bomb(trap)], dtype=object), labels=[0])
    with pytest.raises(FileFormatError, match="never loaded"):
        read_table(tmp_path / "p.npz")
    assert not trap.exists()


def test_a_bare_pickle_called_npz_is_refused(tmp_path):
    trap = tmp_path / "ran"
    (tmp_path / "p.npz").write_bytes(pickle.dumps(Bomb(trap)))
    with pytest.raises(FileFormatError, match="not a readable npz"):
        read_table(tmp_path / "p.npz")
    assert not trap.exists()


def _npz_with(path, member: bytes, name="logits.npy"):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, member)


def test_absurd_shapes_are_refused_before_allocating(tmp_path):
    stream = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**9, 10**6)}
    np.lib.format.write_array_header_1_0(stream, header)
    _npz_with(tmp_path / "p.npz", stream.getvalue() + b"\0" * 16)
    with pytest.raises(FileFormatError, match="but 16 bytes follow"):
        read_table(tmp_path / "p.npz")


def test_member_without_a_header_is_refused(tmp_path):
    _npz_with(tmp_path / "p.npz", b"nothing of the kind")
    with pytest.raises(FileFormatError, match="no valid npy header"):
        read_table(tmp_path / "p.npz")


def test_path_tricks_in_member_names_write_nothing(tmp_path):
    stream = io.BytesIO()
    np.save(stream, np.arange(3))
    (tmp_path / "in").mkdir()
    _npz_with(tmp_path / "in" / "p.npz", stream.getvalue(), name="../outside.npy")
    table, _ = read_table(tmp_path / "in" / "p.npz")
    assert list(table) == ["../outside"]
    assert sorted(f.name for f in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
@pytest.mark.parametrize("keep", [0.3, 0.7, 0.99])
def test_truncated_files_are_refused(tmp_path, suffix, keep, rng):
    path = tmp_path / f"p.{suffix}"
    write_table(path, {"logits": rng.normal(size=(50, 3)), "labels": np.zeros(50, int)}, {})
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(FileFormatError, match="not a readable"):
        read_table(path)


def test_flipped_bytes_never_pass_silently_as_other_numbers(tmp_path, rng):
    path = tmp_path / "p.npz"
    table = {"logits": rng.normal(size=(30, 3))}
    write_table(path, table, {})
    original = path.read_bytes()
    refused = 0
    for byte in range(len(original)):
        data = bytearray(original)
        data[byte] ^= 0xFF
        path.write_bytes(bytes(data))
        try:
            again, _ = read_table(path)
        except FileFormatError:
            refused += 1
            continue
        for values in again.values():  # a flip in a name or a date is harmless
            np.testing.assert_array_equal(values, table["logits"])
    assert refused > 50


def test_missing_empty_and_unknown_files(tmp_path):
    with pytest.raises(FileFormatError, match="no file at"):
        read_table(tmp_path / "p.npz")
    (tmp_path / "p.npz").touch()
    with pytest.raises(FileFormatError, match="is empty"):
        read_table(tmp_path / "p.npz")
    with pytest.raises(FileFormatError, match="ending in"):
        read_table(tmp_path / "p.pkl")
    with pytest.raises(FileFormatError, match=r"no file or folder at .*nowhere; check"):
        read_table(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    for folder, holds in ((tmp_path, "empty, p.npz"), (tmp_path / "empty", "nothing")):
        with pytest.raises(FileFormatError, match=f"got the folder .*, which holds {holds}; name"):
            read_table(folder)


def test_csv_faults_name_row_and_column(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("logits_0,logits_1,labels\n1,2,0\n1,two,1\n")
    with pytest.raises(
        FileFormatError, match=r"column 'logits_1': .* got 'two' at row 1; fill or drop"
    ):
        Predictions.load(path)
    path.write_text("logits_0,logits_1,labels\n1,2,0\n1,2\n")
    with pytest.raises(
        FileFormatError, match="expected 3 columns, got 2 at row 1; the header is logits_0"
    ):
        read_table(path)
    path.write_text("logits_0,logits_1,labels\n1,2\n3,4\n")
    with pytest.raises(FileFormatError, match="expected 3 columns, got 2 at row 0"):
        read_table(path)
    path.write_text("logits_0,logits_0\n1,2\n")
    with pytest.raises(
        FileFormatError, match="distinct column names, got 'logits_0' twice; rename"
    ):
        read_table(path)
    path.write_text("logits_0,labels\n")
    with pytest.raises(FileFormatError, match="no rows"):
        read_table(path)
    path.write_bytes(b"logits_0,labels\n\xff\xfe,1\n")
    with pytest.raises(FileFormatError, match="not UTF-8"):
        read_table(path)
    path.write_text('"logits\n')
    with pytest.raises(FileFormatError, match="no rows"):
        read_table(path)
    path.write_text("logits_1,labels\n1,\n")
    with pytest.raises(FileFormatError, match="label at row 0 is missing"):
        Predictions.load(path)


def test_wide_columns_are_ordered_by_number(tmp_path):
    names = [f"probs_{i}" for i in reversed(range(12))]
    numbers = ["1" if name == "probs_7" else "0" for name in names]
    text = ",".join([*names, "labels"]) + "\n" + ",".join([*numbers, "3"]) + "\n"
    (tmp_path / "p.csv").write_text(text)
    p = Predictions.load(tmp_path / "p.csv")
    np.testing.assert_array_equal(p.probs, [np.arange(12) == 7])
    assert p.labels.dtype == np.int64


def test_gaps_in_wide_columns(tmp_path):
    (tmp_path / "p.csv").write_text("logits_0,logits_2,labels\n1,2,0\n")
    with pytest.raises(FileFormatError, match="no logits_1"):
        Predictions.load(tmp_path / "p.csv")
    lists = pa.array([[1.0], [2.0]], pa.list_(pa.float64()))
    pq.write_table(pa.table({"logits_0": lists, "logits_1": lists}), tmp_path / "p.parquet")
    with pytest.raises(FileFormatError, match="got lists"):
        Predictions.load(tmp_path / "p.parquet", labels_required=False)


def test_parquet_spellings_agree(tmp_path, rng):
    x = rng.normal(size=(7, 3)).astype(np.float32)
    spellings = {
        "list": {"logits": pa.array(list(x), pa.list_(pa.float32()))},
        "large": {"logits": pa.array(list(x), pa.large_list(pa.float32()))},
        "fixed": {"logits": pa.array(list(x), pa.list_(pa.float32(), 3))},
        "wide": {f"logits_{j}": x[:, j] for j in range(3)},
    }
    for name, columns in spellings.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet", row_group_size=3)
        p = Predictions.load(tmp_path / f"{name}.parquet", labels_required=False)
        np.testing.assert_array_equal(p.logits, x)


def test_parquet_faults_name_the_row(tmp_path):
    def refused(column, message):
        pq.write_table(pa.table({"logits": column}), tmp_path / "p.parquet")
        with pytest.raises(FileFormatError, match=message):
            Predictions.load(tmp_path / "p.parquet", labels_required=False)

    refused(pa.array([1.0, None]), "null at row 1")
    refused(pa.array([[1.0, 2.0], [None, 1.0]]), "null at row 1, entry 0")
    refused(pa.array([[1.0, 2.0], [1.0]]), "length 2, as in row 0, got 1 at row 1")
    refused(pa.array(["a", "b"]), "expected numbers, got string")


def test_bad_metadata_is_refused(tmp_path):
    np.savez(tmp_path / "p.npz", logits=np.eye(2), focalcal=np.array("{not json"))
    with pytest.raises(FileFormatError, match="not JSON"):
        read_table(tmp_path / "p.npz")
    np.savez(tmp_path / "p.npz", logits=np.eye(2), focalcal=np.array("[1]"))
    with pytest.raises(FileFormatError, match="expected a JSON object"):
        read_table(tmp_path / "p.npz")


def test_metadata_that_are_null_are_absent(tmp_path):
    text = '{"provenance": null, "class_names": ["a", "b"]}'
    np.savez(tmp_path / "p.npz", logits=np.eye(2), focalcal=np.array(text))
    assert read_table(tmp_path / "p.npz")[1] == {"class_names": ["a", "b"]}


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
@pytest.mark.parametrize("ending", ["csv", "jsonl", "npz"])
def test_times_and_missing_numbers_become_text_as_pandas_writes_them(tmp_path, unit, ending):
    """NumPy lists nanoseconds as integers, and JSON has no NaN."""
    times = pd.Series(pd.to_datetime(["2026-05-01 06:30:00", None, "2026-05-02 00:00:00"])).astype(
        f"datetime64[{unit}]"
    )
    frame = pd.DataFrame({"at": times, "x": [0.5, np.nan, 2.0]})
    frame["local"] = times.dt.tz_localize("Europe/Helsinki")
    frame.to_parquet(tmp_path / "p.parquet")
    write_table(tmp_path / f"p.{ending}", *read_table(tmp_path / "p.parquet"))
    wanted = frame["local"].map(lambda t: "" if t is pd.NaT else str(t)).tolist()
    if ending == "npz":
        stored = np.load(tmp_path / "p.npz")
        np.testing.assert_array_equal(stored["at"], times.to_numpy())
        assert stored["local"].tolist() == wanted
    elif ending == "csv":
        frame.to_csv(tmp_path / "pandas.csv", index=False)
        ours, theirs = (tmp_path / f"{name}.csv" for name in ("p", "pandas"))
        assert ours.read_text().split() == theirs.read_text().split()
    else:
        rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
        assert [row["x"] for row in rows] == [0.5, None, 2.0]
        assert [row["at"] for row in rows] == ["2026-05-01 06:30:00", None, "2026-05-02 00:00:00"]
        assert [row["local"] or "" for row in rows] == wanted


def test_nanoseconds_and_durations_in_text(tmp_path):
    times = np.array(["2026-05-01T00:00:00.000000001", "NaT"], "datetime64[ns]")
    durations = np.array([1, 90_000_000_000], "timedelta64[ns]")
    write_table(tmp_path / "p.csv", {"at": times, "for": durations}, {})
    text = (tmp_path / "p.csv").read_text().splitlines()
    assert text[1:] == [
        "2026-05-01T00:00:00.000000001,1 nanoseconds",
        ",90000000000 nanoseconds",
    ]
    write_table(tmp_path / "p.csv", {"for": durations[1:]}, {})
    assert (tmp_path / "p.csv").read_text().splitlines()[1:] == ["0:01:30"]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"focalcal\[parquet\]"):
        write_table(tmp_path / "p.parquet", {"logits": np.eye(2)}, {})
    assert list(tmp_path.iterdir()) == []
