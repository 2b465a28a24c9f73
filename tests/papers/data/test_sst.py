"""The sentiment treebank: small files and the real one."""

import pytest
import torch

from focalcal.errors import FileFormatError
from focalcal_papers.data import load

FILES = {
    "train.txt": "(3 (2 Very) (3 Good))\n(2 (2 So) (2 so))\n(0 (1 Bad) (2 -LRB-))\n",
    "dev.txt": "(4 Unseen)\n",
    "test.txt": "(1 (1 bad) (2 movie))\n(2 neutral)\n\n",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_neutral_sentences_are_dropped(folder):
    data = load("sst", folder, complete=False)
    assert (len(data.train), len(data.calibration), len(data.test)) == (2, 1, 1)
    assert data.n_source == 6
    assert data.train.indices.tolist() == [0, 2]
    assert data.test.indices.tolist() == [4]
    assert data.train.labels.tolist() == [1, 0]
    assert data.input_shape == ()


def test_node_targets_have_three_values_and_words_are_cleaned(folder):
    data = load("sst", folder, complete=False)
    batch = data.train.batch(torch.tensor([0, 1]))
    assert batch.targets.tolist() == [1, 2, 0, 1, 2, 0]
    words = [data.vocabulary.words[i - 2] for i in batch.inputs.words]
    assert words == ["very", "good", "bad", "("]


def test_published_vectors_extend_the_vocabulary(folder):
    (folder / "glove.txt").write_text("unseen 1 2\ngood 3 4\nelsewhere 5 6\n")
    plain = load("sst", folder, complete=False)
    data = load("sst", folder, complete=False, vectors=folder / "glove.txt")
    assert plain.vectors is None
    assert plain.calibration.batch(torch.tensor([0])).inputs.words.tolist() == [1]
    assert data.vocabulary.words == (*plain.vocabulary.words, "unseen")
    assert data.vectors.shape == (len(data.vocabulary), 2)
    assert data.vectors[data.vocabulary.number("unseen")].tolist() == [1, 2]


def test_missing_and_damaged(folder):
    with pytest.raises(FileFormatError, match=r"expected 8544 trees, got 3 .*complete=False"):
        load("sst", folder)
    (folder / "dev.txt").write_text("(3 good)\n(3 (2 half)\n")
    with pytest.raises(FileFormatError, match=r"brackets that pair.*line 2 of .*dev\.txt"):
        load("sst", folder, complete=False)
    (folder / "dev.txt").unlink()
    with pytest.raises(FileFormatError, match=r"did not find dev\.txt in .*nlp\.stanford\.edu"):
        load("sst", folder)


def test_real_treebank(shared_data):
    text = shared_data / "text"
    data = load("sst", text / "sst", vectors=text / "glove6B100d_20news_sst_f16.npz")
    assert (len(data.train), len(data.calibration), len(data.test)) == (6920, 872, 1821)
    assert data.n_source == 8544 + 1101 + 2210
    batch = data.train.batch(torch.arange(len(data.train)))
    # A binary tree of n words has n − 1 inner nodes.
    assert len(batch.targets) == 2 * len(batch.inputs.words) - len(data.train)
    assert torch.equal(batch.targets[batch.inputs.roots], 2 * data.train.labels)
