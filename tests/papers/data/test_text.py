"""Words to numbers, and word vectors from both formats."""

import doctest

import numpy as np
import pytest
import torch

import focalcal_papers.data.text
from focalcal.errors import FileFormatError, InputError
from focalcal_papers.data import Vocabulary, WordVectors, read_word_vectors, tokenize


def test_examples():
    assert doctest.testmod(focalcal_papers.data.text).failed == 0


def test_tokenize_keeps_latin_letters_and_drops_signs():
    assert tokenize("Über_uns: <x@y.de>\n") == ["über", "uns", "x", "y", "de"]
    assert tokenize("") == []


def test_vocabulary_is_ordered_by_count_then_alphabet():
    vocabulary = Vocabulary.most_frequent([["c", "b", "b"], ["a", "c", "d"]])
    assert vocabulary.words == ("b", "c", "a", "d")
    assert len(vocabulary) == 6
    assert vocabulary.number("nope") == 1
    padded = vocabulary.encode_padded([["b", "x"], [], ["c", "a", "d", "b"]], length=3)
    assert padded.tolist() == [[2, 1, 0], [0, 0, 0], [3, 4, 5]]


def test_both_formats_agree(tmp_path, rng):
    words = ["the", "cat", "'s"]
    vectors = rng.normal(size=(3, 4)).astype(np.float32)
    text = tmp_path / "glove.txt"
    text.write_text(
        "".join(f"{w} {' '.join(map(repr, row.tolist()))}\n" for w, row in zip(words, vectors))
    )
    np.savez(tmp_path / "glove.npz", vectors=vectors)
    (tmp_path / "words.txt").write_text("\n".join(words) + "\n")
    one, two = read_word_vectors(text), read_word_vectors(tmp_path / "glove.npz")
    assert one.words == two.words == tuple(words)
    assert np.array_equal(one.vectors, two.vectors)
    assert read_word_vectors(text, keep=["cat"]).words == ("cat",)


def test_rows_for_a_vocabulary():
    published = WordVectors(("a", "b"), np.array([[1, 2], [3, 4]], np.float32))
    rows = published.rows_for(Vocabulary(("b", "new", "a")), seed=3)
    assert rows[0].tolist() == [0, 0]
    assert rows[2].tolist() == [3, 4]
    assert rows[4].tolist() == [1, 2]
    assert 0 < rows[3].abs().max() <= 0.05
    assert torch.equal(rows, published.rows_for(Vocabulary(("b", "new", "a")), seed=3))
    assert published.rows_for(Vocabulary(("x",))).abs().max() <= 0.05


def test_missing_and_damaged(tmp_path):
    with pytest.raises(FileFormatError, match=r"found none; download .*glove"):
        read_word_vectors(tmp_path / "glove.txt")
    text = tmp_path / "glove.txt"
    text.write_text("a 1 2\nb 1\n")
    with pytest.raises(FileFormatError, match=r"a word and 2 numbers, got .*line 2"):
        read_word_vectors(text)
    text.write_text("a x y\n")
    with pytest.raises(FileFormatError, match=r"a word and numbers, got .*line 1"):
        read_word_vectors(text)
    text.write_text("a 1 2\n")
    with pytest.raises(InputError, match="at least one wanted word"):
        read_word_vectors(text, keep=["z"])
    npz = tmp_path / "glove.npz"
    npz.write_bytes(b"no archive")
    with pytest.raises(FileFormatError, match=r"words of .* in .*words\.txt"):
        read_word_vectors(npz)
    (tmp_path / "words.txt").write_text("a\nb\n")
    with pytest.raises(FileFormatError, match="not a readable npz file"):
        read_word_vectors(npz)
    for table in ({"vectors": np.zeros((3, 2))}, {"others": np.zeros((2, 2))}):
        np.savez(npz, **table)
        with pytest.raises(FileFormatError, match="expected an array 'vectors' with 2 rows"):
            read_word_vectors(npz)
    np.savez(npz, vectors=np.array([{}, {}], dtype=object))
    with pytest.raises(FileFormatError, match="never loaded"):
        read_word_vectors(npz)


def test_real_vectors(shared_data):
    vectors = read_word_vectors(shared_data / "text" / "glove6B100d_20news_sst_f16.npz")
    assert vectors.vectors.shape == (54_549, 100)
    rows = vectors.rows_for(Vocabulary(("king", "queen", "cabbage")))[2:]
    rows = rows / rows.norm(dim=1, keepdim=True)
    # What word vectors are for: the king is closer to the queen than to the cabbage.
    assert rows[0] @ rows[1] > rows[0] @ rows[2] + 0.3
