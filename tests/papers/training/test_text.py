"""Text and trees go through the same loop; their files are made here, in the official formats."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal.predictions import Predictions
from focalcal_papers.training import RunFolder, TrainConfig, train

GOOD, BAD = ("great", "fine", "lovely"), ("awful", "dull", "poor")


def sentences(rng, n):
    """Trees such as (4 (2 the) (4 great)): the second word decides."""
    lines = []
    for i in range(n):
        words, label = (GOOD, 4) if i % 2 else (BAD, 0)
        word = words[rng.integers(3)]
        lines.append(f"({label} (2 the) ({label} ({label} {word}) (2 film)))")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("loss", ["ce", "fla-53", "adafocal"])
def test_trees(tmp_path, rng, loss):
    for name, n in (("train", 60), ("dev", 20), ("test", 20)):
        (tmp_path / f"{name}.txt").write_text(sentences(rng, n))
    config = TrainConfig(
        dataset="sst",
        model="tree_lstm",
        loss=loss,
        data_settings={"complete": False},
        model_settings={"memory": 8, "dimension": 6},
        epochs=6,
        batch_size=10,
        optimizer="adagrad",
        lr=0.1,
        weight_decay=1e-4,
        schedule="constant",
        reduction="mean",
        clip_norm=0.0,
        select="best",
        snapshots=(6,),
    )
    result = train(config, tmp_path, tmp_path / "run")
    assert result.metrics["test"]["error"] < 0.1
    predictions = Predictions.load(RunFolder(tmp_path / "run").predictions("test"))
    assert predictions.logits.shape == (20, 2)  # at the root, without the neutral output
    part = train(config, tmp_path, tmp_path / "parts", stop_after=0.1)
    while part.state != "finished":
        part = train(config, tmp_path, tmp_path / "parts", stop_after=0.1)
    again = Predictions.load(RunFolder(tmp_path / "parts").predictions("test"))
    assert np.array_equal(again.logits, predictions.logits)


def test_newsgroups_with_word_vectors(tmp_path, rng):
    for part, n in (("train", 12), ("test", 6)):
        for group, words in (("misc.bad", BAD), ("misc.good", GOOD)):
            folder = tmp_path / f"20news-bydate-{part}" / group
            folder.mkdir(parents=True)
            for i in range(n):
                folder.joinpath(str(i)).write_text(" ".join(rng.choice(words, 5)))
    vectors = "".join(
        f"{word} {' '.join(f'{x:.3f}' for x in rng.normal(size=8))}\n" for word in GOOD + BAD
    )
    (tmp_path / "glove.txt").write_text(vectors)
    config = TrainConfig(
        dataset="20newsgroups",
        model="text_cnn",
        loss="fl-3",
        data_settings={
            "complete": False,
            "calibration": 6,
            "length": 150,
            "vectors": "glove.txt",
        },
        model_settings={"channels": 8},
        epochs=8,
        batch_size=6,
        optimizer="adam",
        lr=1e-2,
        weight_decay=0.0,
        schedule="constant",
        reduction="mean",
        clip_norm=0.0,
        select="best",
    )
    train(config, tmp_path, tmp_path / "run")
    rows = RunFolder(tmp_path / "run").metrics()
    assert min(row["calibration"]["error"] for row in rows) <= 1 / 6
