"""20 Newsgroups: small folders and the real ones."""

import tarfile

import pytest
import torch

from focalcal.errors import FileFormatError, InputError
from focalcal_papers.data import load, tokenize


@pytest.fixture
def folder(tmp_path):
    for part, n in (("train", 6), ("test", 3)):
        for group in ("sci.space", "alt.atheism"):
            place = tmp_path / "20news" / f"20news-bydate-{part}" / group
            place.mkdir(parents=True)
            for i in range(n):
                text = f"From: {group}\n\nword{i} caf\xe9 common common"
                (place / str(i)).write_text(text, encoding="latin-1")
    return tmp_path


def test_reads_folders(folder):
    data = load("20newsgroups", folder, complete=False, calibration=2, length=8)
    assert (len(data.train), len(data.calibration), len(data.test)) == (10, 2, 6)
    assert data.classes == ("alt.atheism", "sci.space")
    assert "2 of its 12 training messages calibrate" in data.note
    words = ["", "?", *data.vocabulary.words]
    assert [words[i] for i in data.test.inputs[4]][:4] == ["from", "sci", "space", "word1"]
    assert "café" in data.vocabulary.words
    assert data.test.labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_the_vocabulary_counts_training_messages_only(folder):
    data = load("20newsgroups", folder, complete=False, calibration=8, length=8)
    used = set(data.train.inputs.unique().tolist()) - {0}
    assert used == set(range(2, len(data.vocabulary)))
    short = load("20newsgroups", folder, complete=False, calibration=2, vocabulary_size=1)
    assert short.vocabulary.words == ("common",)


def test_vectors_come_along(folder):
    (folder / "glove.txt").write_text("common 1 2\n")
    data = load("20newsgroups", folder, complete=False, calibration=2, vectors=folder / "glove.txt")
    assert data.vectors.shape == (len(data.vocabulary), 2)
    assert data.vectors[data.vocabulary.number("common")].tolist() == [1, 2]


def test_a_random_split_cuts_test_and_calibration_from_all_messages(folder):
    read = {"complete": False, "calibration": 3, "length": 8, "split": "random"}
    data = load("20newsgroups", folder, **read)
    sizes = [len(part) for part in data.parts().values()]
    assert sizes == [12, 3, 3]  # of 18, a fifth is test
    used = torch.cat([part.indices for part in data.parts().values()])
    assert used.sort().values.tolist() == list(range(18))
    seeds = [load("20newsgroups", folder, seed=s, **read).test.indices.tolist() for s in range(4)]
    # The official test messages are the last six: a random cut takes others too.
    assert any(min(test) < 12 for test in seeds)
    assert len({tuple(t) for t in seeds}) > 1
    by_date = load("20newsgroups", folder, complete=False, calibration=3, length=8)
    every = {
        int(i): int(y)
        for part in by_date.parts().values()
        for i, y in zip(part.indices, part.labels)
    }
    assert all(every[int(i)] == int(y) for i, y in zip(data.test.indices, data.test.labels))
    assert "3 of all 18 messages calibrate" in data.note
    with pytest.raises(InputError, match=r"expected split 'bydate' or 'random', got 'odd'"):
        load("20newsgroups", folder, complete=False, split="odd")


def test_headers_can_be_dropped(folder):
    bare = folder / "20news" / "20news-bydate-train" / "sci.space" / "0"
    bare.write_text("no header here")
    data = load("20newsgroups", folder, complete=False, calibration=2, length=8, headers=False)
    words = ["", "?", *data.vocabulary.words]
    assert [words[i] for i in data.test.inputs[4] if i] == ["word1", "café", "common", "common"]
    assert "from" not in data.vocabulary.words
    assert "headers dropped" in data.note


def test_missing_and_damaged(folder, tmp_path_factory):
    with pytest.raises(FileFormatError, match=r"expected 11314 messages, got 12 .*complete=False"):
        load("20newsgroups", folder)
    group = folder / "20news" / "20news-bydate-test" / "sci.space"
    group.rename(group.with_name("renamed"))
    with pytest.raises(FileFormatError, match=r"expected a folder sci\.space"):
        load("20newsgroups", folder, complete=False)
    with pytest.raises(FileFormatError, match=r"did not find 20news-bydate-train, .*qwone\.com"):
        load("20newsgroups", tmp_path_factory.mktemp("empty"))


@pytest.mark.slow
def test_real_newsgroups(shared_data, tmp_path):
    with tarfile.open(shared_data / "text" / "20news.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    vectors = shared_data / "text" / "glove6B100d_20news_sst_f16.npz"
    data = load("20newsgroups", tmp_path, vectors=vectors)
    assert (len(data.train), len(data.calibration), len(data.test)) == (10_414, 900, 7_532)
    assert data.n_classes == 20
    assert data.train.inputs.shape == (10_414, 1000)
    assert len(data.vocabulary) == 20_002
    assert data.vectors.shape == (20_002, 100)
    # One message, read again by hand.
    place = tmp_path / "20news" / "20news-bydate-test" / data.classes[0]
    first = min(path.name for path in place.iterdir())
    words = tokenize((place / first).read_text("latin-1"))[:1000]
    expected = data.vocabulary.encode(words)
    assert data.test.inputs[0, : len(expected)].tolist() == expected
    known = (data.train.inputs > 1).sum() / (data.train.inputs > 0).sum()
    assert torch.as_tensor(known) > 0.85
