"""CIFAR: small files in the official formats, and the real CIFAR-10."""

import numpy as np
import pytest
import torch

from focalcal.errors import FileFormatError
from focalcal_papers.data import load
from focalcal_papers.data.cifar import CIFAR10_CLASSES


def test_binary_records(cifar10_folder):
    data = load("cifar10", cifar10_folder, complete=False)
    assert (len(data.train), len(data.calibration), len(data.test)) == (90, 10, 20)
    assert data.train.inputs.dtype == torch.uint8
    assert data.input_shape == (3, 32, 32)
    assert data.classes == CIFAR10_CLASSES
    assert data.n_source == 120
    # The first pixel of each record was set to its place in the official order.
    for split in data.parts().values():
        assert torch.equal(split.inputs[:, 0, 0, 0].long(), split.indices)
    record = np.fromfile(cifar10_folder / "cifar-10-batches-bin" / "test_batch.bin", np.uint8)[
        :3073
    ]
    assert data.test.labels[0] == record[0]
    # Planes are red, green, blue, each row by row.
    assert data.test.inputs[0, 2, 5, 7] == record[1 + 2 * 1024 + 5 * 32 + 7]


def test_the_folder_itself_may_hold_the_files(cifar10_folder):
    inner = load("cifar10", cifar10_folder / "cifar-10-batches-bin", complete=False)
    assert len(inner.test) == 20


def test_seed_moves_calibration_but_not_test(cifar10_folder):
    one, two = (load("cifar10", cifar10_folder, seed=s, complete=False) for s in (1, 2))
    assert not torch.equal(one.calibration.indices, two.calibration.indices)
    assert torch.equal(one.test.inputs, two.test.inputs)


def test_missing_files_are_named(tmp_path, cifar10_folder):
    (cifar10_folder / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    inner = cifar10_folder / "cifar-10-batches-bin"
    with pytest.raises(
        FileFormatError, match=r"did not find data_batch_3\.bin in .*cs\.toronto\.edu.*unpack them"
    ):
        load("cifar10", inner)
    with pytest.raises(FileFormatError, match=r"did not find data_batch_1\.bin, .*test_batch\.bin"):
        load("cifar10", cifar10_folder)
    with pytest.raises(FileFormatError, match=r"did not find train\.bin, test\.bin"):
        load("cifar100", tmp_path)
    with pytest.raises(FileFormatError, match="expected a folder with the files of CIFAR-10"):
        load("cifar10", tmp_path / "absent")
    with pytest.raises(FileFormatError, match="got None"):
        load("cifar10")


def test_damaged_files(cifar10_folder):
    path = cifar10_folder / "cifar-10-batches-bin" / "data_batch_2.bin"
    with pytest.raises(FileFormatError, match=r"expected 10000 images, got 20 .*complete=False"):
        load("cifar10", cifar10_folder)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(FileFormatError, match=r"whole records of 3073 bytes.*data_batch_2\.bin"):
        load("cifar10", cifar10_folder, complete=False)
    path.write_bytes(b"")
    with pytest.raises(FileFormatError, match="got 0 bytes"):
        load("cifar10", cifar10_folder, complete=False)
    path.write_bytes(whole[:3073] + b"\x0b" + whole[3074:])
    with pytest.raises(FileFormatError, match=r"labels in 0\.\.9, got 11 at record 1"):
        load("cifar10", cifar10_folder, complete=False)


def test_cifar100_uses_the_fine_label(tmp_path):
    rng = np.random.default_rng(0)
    for name, n in (("train", 30), ("test", 10)):
        records = rng.integers(0, 20, size=(n, 3074), dtype=np.uint8)
        records[:, 1] = np.arange(n) + 60
        records.tofile(tmp_path / f"{name}.bin")
    data = load("cifar100", tmp_path, complete=False)
    assert data.n_classes == 100
    assert data.classes[7] == "7"
    assert torch.equal(data.train.labels, data.train.indices + 60)
    (tmp_path / "fine_label_names.txt").write_text("\n".join(f"name{i}" for i in range(100)))
    assert load("cifar100", tmp_path, complete=False).classes[7] == "name7"
    (tmp_path / "fine_label_names.txt").write_text("apple")
    with pytest.raises(FileFormatError, match="expected 100 class names, got 1"):
        load("cifar100", tmp_path, complete=False)
    with pytest.raises(FileFormatError, match="expected 50000 images"):
        load("cifar100", tmp_path)


def test_real_cifar10(real_cifar10):
    data = load("cifar10", real_cifar10)
    assert (len(data.train), len(data.calibration), len(data.test)) == (45_000, 5_000, 10_000)
    # The set is balanced, and its first test images are known: cat, ship, ship, airplane.
    assert torch.bincount(data.test.labels).tolist() == [1000] * 10
    every = torch.cat([data.train.labels, data.calibration.labels])
    assert torch.bincount(every).tolist() == [5000] * 10
    assert data.test.labels[:4].tolist() == [3, 8, 8, 0]
    # The channel means that everybody normalises with.
    mean = data.calibration.inputs.float().mean((0, 2, 3)) / 255
    torch.testing.assert_close(mean, data.mean, atol=5e-3, rtol=0)
