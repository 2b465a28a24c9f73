"""MNIST and Fashion-MNIST files."""

import numpy as np
import pytest
import torch

from focalcal.errors import FileFormatError
from focalcal_papers.data import load


@pytest.fixture
def arrays(rng):
    return {
        "train-images-idx3-ubyte": rng.integers(0, 256, size=(48, 28, 28)),
        "train-labels-idx1-ubyte": rng.integers(0, 10, size=48),
        "t10k-images-idx3-ubyte": rng.integers(0, 256, size=(12, 28, 28)),
        "t10k-labels-idx1-ubyte": rng.integers(0, 10, size=12),
    }


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
@pytest.mark.parametrize("end", ["", ".gz"])
def test_reads_what_was_written(tmp_path, write_idx, arrays, name, end):
    for file, array in arrays.items():
        write_idx(tmp_path / f"{file}{end}", array)
    data = load(name, tmp_path)
    assert (len(data.train), len(data.calibration), len(data.test)) == (44, 4, 12)
    assert data.input_shape == (1, 28, 28)
    images = torch.from_numpy(arrays["train-images-idx3-ubyte"])
    labels = torch.from_numpy(arrays["train-labels-idx1-ubyte"])
    for split in (data.train, data.calibration):
        assert torch.equal(split.inputs[:, 0].long(), images[split.indices])
        assert torch.equal(split.labels, labels[split.indices])
    assert len(load(name, tmp_path, calibration=10).calibration) == 10


def test_a_shortened_training_set_may_say_so_in_its_name(tmp_path, write_idx, arrays):
    for file, array in arrays.items():
        write_idx(tmp_path / f"{file.replace('train', 'train-48')}.gz", array)
    assert len(load("fashion_mnist", tmp_path).train) == 44
    # The official name wins where both are there.
    for file, array in arrays.items():
        write_idx(tmp_path / file, array[:-12] if "train" in file else array)
    assert len(load("fashion_mnist", tmp_path).train) == 33


def test_missing_and_damaged(tmp_path, write_idx, arrays):
    with pytest.raises(FileFormatError, match=r"train-images-idx3-ubyte.*zalandoresearch.*unpack"):
        load("fashion_mnist", tmp_path)
    for file, array in arrays.items():
        write_idx(tmp_path / file, array)
    path = tmp_path / "train-images-idx3-ubyte"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(
        FileFormatError, match=r"expected 37632 bytes of data for shape .48, 28, 28"
    ):
        load("mnist", tmp_path)
    path.write_bytes(b"\0\0\x0d\3" + whole[4:])
    with pytest.raises(FileFormatError, match=r"another beginning .00 00 0d 03"):
        load("mnist", tmp_path)
    path.write_bytes(whole)
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(47))
    with pytest.raises(FileFormatError, match="as many labels as images, got 47"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("change", [lambda raw: raw[:-9], lambda raw: b"plain text, no gzip"])
def test_damaged_gzip(tmp_path, write_idx, arrays, change):
    for file, array in arrays.items():
        write_idx(tmp_path / f"{file}.gz", array)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(FileFormatError, match="expected a whole gzip file"):
        load("mnist", tmp_path)


def test_real_fashion_mnist(shared_data):
    data = load("fashion_mnist", shared_data / "fashion_mnist")
    assert (len(data.train), len(data.calibration), len(data.test)) == (11_000, 1_000, 10_000)
    assert torch.bincount(data.test.labels).tolist() == [1000] * 10
    mean = data.train.inputs.float().mean() / 255
    std = data.train.inputs.float().std() / 255
    torch.testing.assert_close(
        torch.stack([mean, std]), torch.cat([data.mean, data.std]), atol=5e-3, rtol=0
    )
