"""Coverage-guided fuzzing of the loaders with atheris: `make fuzz-atheris`.

    python tests/fuzz/atheris_loaders.py npz|csv|json|stats [libFuzzer options]

The same promise as in test_loaders.py: a valid result or a FocalcalError. The first inputs are
valid files, made here; libFuzzer then keeps every input that reaches new code. (parquet is decoded
by pyarrow's compiled code, which atheris cannot see into; hypothesis covers it.)
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["focalcal", "zipfile", "csv"]):
    import numpy as np

    from focalcal import calibrators
    from focalcal.calibrators.persistence import to_dict
    from focalcal.errors import FocalcalError
    from focalcal.metrics import CalibrationStats
    from focalcal.predictions import Predictions

RNG = np.random.default_rng(0)
LOGITS, LABELS = RNG.normal(size=(12, 3)), np.arange(12) % 3


def predictions(suffix: str, folder: Path) -> tuple[list[bytes], Callable[[bytes], None]]:
    path = folder / f"x{suffix}"
    seeds = []
    for given in (Predictions(logits=LOGITS, labels=LABELS), Predictions(logits=LOGITS[:, 0])):
        given.save(path)
        seeds.append(path.read_bytes())

    def one(data: bytes) -> None:
        path.write_bytes(data)
        probs = Predictions.load(path, labels_required=False).probabilities()
        if not (np.isfinite(probs).all() and (probs >= 0).all() and (probs <= 1 + 1e-6).all()):
            raise AssertionError(f"probabilities {probs}")

    return seeds, one


def calibrator(folder: Path) -> tuple[list[bytes], Callable[[bytes], None]]:
    path = folder / "c.json"
    fitted = [calibrators.make(name).fit(LOGITS, LABELS) for name in calibrators.METHODS]

    def one(data: bytes) -> None:
        path.write_bytes(data)
        loaded = calibrators.load(path)
        probs = loaded.predict_proba(np.zeros((2, max(loaded.n_classes_, 1))))
        if not (np.isfinite(probs).all() and (probs >= 0).all()):
            raise AssertionError(f"probabilities {probs}")

    return [json.dumps(to_dict(c)).encode() for c in fitted], one


def statistics(_: Path) -> tuple[list[bytes], Callable[[bytes], None]]:
    good = CalibrationStats(3, bins=3).update(LABELS, np.full((12, 3), 1 / 3)).to_json()

    def one(data: bytes) -> None:
        found = CalibrationStats.from_json(data.decode("utf-8", "replace")).compute()
        if not 0 <= found["accuracy"].value <= 1 + 1e-6:
            raise AssertionError(f"accuracy {found['accuracy']}")

    return [good.encode()], one


def main() -> None:
    kind = sys.argv.pop(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        makers = {
            "npz": lambda: predictions(".npz", folder),
            "csv": lambda: predictions(".csv", folder),
            "json": lambda: calibrator(folder),
            "stats": lambda: statistics(folder),
        }
        seeds, one = makers[kind]()
        corpus = folder / "corpus"
        corpus.mkdir()
        for i, data in enumerate(seeds):
            (corpus / str(i)).write_bytes(data)

        def test(data: bytes) -> None:
            with contextlib.suppress(FocalcalError):
                one(data)

        atheris.Setup([*sys.argv, str(corpus), "-max_len=20000"], test)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
