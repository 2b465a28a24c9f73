"""The Python version of CIFAR is read without running what it says."""

import os
import pickle
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from focalcal.errors import FileFormatError
from focalcal_papers.data import load
from focalcal_papers.data.pickled import read_cifar_pickle


def python2_pickle(images: np.ndarray, labels: list[int], label_key: bytes) -> bytes:
    """The bytes Python 2 wrote into the official files, opcode by opcode (protocol 2)."""

    def string(value: bytes) -> bytes:
        if len(value) < 256:
            return b"U" + bytes([len(value)]) + value
        return b"T" + struct.pack("<i", len(value)) + value

    def integer(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    dtype = b"cnumpy\ndtype\n" + b"(" + string(b"u1") + integer(0) + integer(1) + b"tR"
    dtype += b"(" + integer(3) + string(b"|") + b"NNN" + integer(-1) * 2 + integer(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n"
    array += b"(cnumpy\nndarray\n(" + integer(0) + b"t" + string(b"b") + b"tR"
    fortran = b"\x88" if images.flags.f_contiguous and not images.flags.c_contiguous else b"\x89"
    shape = b"(" + integer(images.shape[0]) + integer(images.shape[1]) + b"t"
    data = images.tobytes(order="A")
    array += b"(" + integer(1) + shape + dtype + fortran + string(data) + b"tb"
    listed = b"](" + b"".join(integer(label) for label in labels) + b"e"
    items = string(b"data") + array + string(label_key) + listed
    items += string(b"batch_label") + string(b"training batch 1 of 5")
    items += string(b"filenames") + b"](" + string(b"a.png") + b"e"
    return b"\x80\x02}(" + items + b"u."


@pytest.fixture
def content(rng):
    images = rng.integers(0, 256, size=(6, 3072), dtype=np.uint8)
    return images, rng.integers(0, 10, size=6).tolist()


def test_official_layout(tmp_path, content):
    images, labels = content
    path = tmp_path / "data_batch_1"
    path.write_bytes(python2_pickle(images, labels, b"labels"))
    # The oracle is Python's own unpickler, safe here because the test wrote the file.
    expected = pickle.loads(
        path.read_bytes().replace(b"numpy.core.", b"numpy._core."), encoding="bytes"
    )
    read = read_cifar_pickle(path)
    assert read.keys() == expected.keys()
    assert np.array_equal(read[b"data"], expected[b"data"])
    assert np.array_equal(read[b"data"], images)
    assert read[b"labels"] == expected[b"labels"] == labels


def test_column_order(tmp_path, content):
    images, labels = content
    path = tmp_path / "batch"
    path.write_bytes(python2_pickle(np.asfortranarray(images), labels, b"labels"))
    assert np.array_equal(read_cifar_pickle(path)[b"data"], images)


def test_loads_as_a_data_set(tmp_path, content):
    images, labels = content
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (tmp_path / name).write_bytes(python2_pickle(images, labels, b"labels"))
    data = load("cifar10", tmp_path, complete=False)
    assert torch.equal(data.test.inputs, torch.from_numpy(images).view(-1, 3, 32, 32))
    assert data.test.labels.tolist() == labels
    for name in ("train", "test"):
        (tmp_path / name).write_bytes(python2_pickle(images, labels, b"fine_labels"))
    data = load("cifar100", tmp_path, complete=False, calibration=2)
    assert data.test.labels.tolist() == labels


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", ["system", "popen", "eval", "touch", "getattr"])
def test_hostile_files_run_nothing(tmp_path, function, protocol):
    victim = tmp_path / "victim"
    attack = {
        "system": Hostile(os.system, f"touch {victim}"),
        "popen": Hostile(subprocess.Popen, ["touch", str(victim)]),
        "eval": Hostile(eval, f"open({str(victim)!r}, 'w')"),
        "touch": Hostile(Path.touch, victim),
        "getattr": Hostile(getattr, {}, "keys"),
    }[function]
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({b"labels": [0], b"data": attack}, protocol=protocol))
    with pytest.raises(FileFormatError, match=r"refused .*it names"):
        read_cifar_pickle(path)
    assert not victim.exists()
    # The file is no dud: Python's own unpickler does run it.
    if function == "system":
        pickle.loads(path.read_bytes())
        assert victim.exists()


def test_numpy_names_are_inert(tmp_path):
    """Even the admitted names never reach NumPy: an object array cannot be smuggled in."""
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": np.array([{}, []], dtype=object)}, protocol=2))
    with pytest.raises(FileFormatError, match="refused"):
        read_cifar_pickle(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw[: len(raw) // 2],
        lambda raw: b"",
        lambda raw: b"not a pickle",
        lambda raw: pickle.dumps([1, 2], protocol=2),
        lambda raw: raw.replace(b"U\x02u1", b"U\x02i8"),
        lambda raw: raw.replace(b"J\x06\x00\x00\x00J\x00\x0c", b"J\x07\x00\x00\x00J\x00\x0c"),
        lambda raw: raw.replace(b"J\x06\x00\x00\x00J\x00\x0c", b"J\xff\xff\xff\xffJ\x00\x0c"),
    ],
)
def test_damaged_pickles(tmp_path, content, change):
    path = tmp_path / "data_batch_1"
    path.write_bytes(change(python2_pickle(*content, b"labels")))
    with pytest.raises(FileFormatError, match="expected one of CIFAR's Python files"):
        read_cifar_pickle(path)


@pytest.mark.parametrize(
    ("width", "labels"),
    [(3072, [0] * 5), (3072, [0] * 5 + [10]), (3071, [0] * 6)],
)
def test_wrong_content(tmp_path, width, labels):
    raw = python2_pickle(np.zeros((6, width), np.uint8), labels, b"labels")
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (tmp_path / name).write_bytes(raw)
    with pytest.raises(FileFormatError, match=r"expected data \(N, 3072\) and N labels in 0\.\.9"):
        load("cifar10", tmp_path, complete=False)


def test_absent_file_stays_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_cifar_pickle(tmp_path / "absent")
