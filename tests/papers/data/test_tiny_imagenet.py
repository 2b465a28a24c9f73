"""Tiny-ImageNet: a small folder in the official layout."""

import sys

import numpy as np
import pytest
import torch

from focalcal.errors import FileFormatError, MissingExtraError
from focalcal_papers.data import load

Image = pytest.importorskip("PIL.Image")
CODES = ("n02", "n01")


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "tiny-imagenet-200"
    (place / "val" / "images").mkdir(parents=True)
    (place / "wnids.txt").write_text("\n".join(CODES))
    (place / "words.txt").write_text("n01\tgoldfish\nn99\tother\n")
    lines = []
    for label, code in enumerate(CODES):
        images = place / "train" / code / "images"
        images.mkdir(parents=True)
        for i in range(5):
            # Flat colours survive JPEG; the last image is grey, as a few official ones are.
            mode, colour = ("L", 90) if i == 4 else ("RGB", (200 * label, 40 * i, 90))
            Image.new(mode, (64, 64), colour).save(images / f"{code}_{i}.JPEG")
        Image.new("RGB", (64, 64), (200 * label, 0, 0)).save(
            place / "val" / "images" / f"v{label}.JPEG"
        )
        lines.append(f"v{label}.JPEG\t{code}\t0\t0\t62\t62")
    (place / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_reads_the_official_layout(folder):
    data = load("tiny_imagenet", folder, complete=False, calibration=2)
    assert (len(data.train), len(data.calibration), len(data.test)) == (8, 2, 2)
    assert data.input_shape == (3, 64, 64)
    assert data.classes == ("n02", "goldfish")
    assert data.test.labels.tolist() == [0, 1]
    for split in (data.train, data.calibration):
        for image, label, index in zip(split.inputs, split.labels, split.indices):
            i = int(index) % 5
            colour = [90, 90, 90] if i == 4 else [200 * int(label), 40 * i, 90]
            assert np.abs(image[:, 30, 30].numpy().astype(int) - colour).max() <= 3
    assert torch.equal(data.train.labels, data.train.indices // 5)


def test_missing_and_damaged(folder, tmp_path_factory):
    with pytest.raises(FileFormatError, match="expected 100,000 training images, got 10"):
        load("tiny_imagenet", folder)
    with pytest.raises(FileFormatError, match=r"did not find wnids\.txt, train, .*cs231n"):
        load("tiny_imagenet", tmp_path_factory.mktemp("empty"))
    place = folder / "tiny-imagenet-200"
    image = place / "val" / "images" / "v0.JPEG"
    image.write_bytes(image.read_bytes()[:200])
    with pytest.raises(FileFormatError, match=r"expected a JPEG image, could not read .*v0\.JPEG"):
        load("tiny_imagenet", folder, complete=False)
    Image.new("RGB", (32, 32)).save(image)
    with pytest.raises(FileFormatError, match=r"64×64 pixels, got \(32, 32\)"):
        load("tiny_imagenet", folder, complete=False)
    (place / "val" / "val_annotations.txt").write_text("v0.JPEG\tn77\t0\n")
    with pytest.raises(FileFormatError, match=r"a code of wnids\.txt, got .*line 1"):
        load("tiny_imagenet", folder, complete=False)


def test_without_pillow(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match="needs Pillow"):
        load("tiny_imagenet", folder, complete=False)
