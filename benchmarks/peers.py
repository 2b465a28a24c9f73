"""The same checks through other calibration libraries, on the predictions that come with focalcal.

    pip install netcal probmetrics mapie uncertainty-toolbox venn-abers torchmetrics numba
    OMP_NUM_THREADS=1 python benchmarks/peers.py --json peers.json

A peer that cannot be imported is named with the reason. Calibrators are fitted on the validation
set of a ResNet-18 on CIFAR-10 and scored on its test set; NLL is −mean(log p_y) without clipping.
Seconds are CPU time of fit and predict, the best of three, so that other load counts little.
"""

import argparse
import importlib.metadata
import json
import time
import warnings
from pathlib import Path

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin

from focalcal.calibrators import make
from focalcal.examples import resnet18
from focalcal.metrics import ece
from focalcal.provenance import provenance


class Given(ClassifierMixin, BaseEstimator):
    """A fitted classifier whose inputs are its own probabilities."""

    def fit(self, p, y=None):
        self.classes_ = np.arange(p.shape[1])
        return self

    def predict_proba(self, p):
        return p

    def predict(self, p):
        return p.argmax(axis=1)


# Each function imports a peer and returns what is checked: "ece" of (y, p), calibrators of
# (p, y, new) by name, and "extra", something that focalcal cannot do.


def focalcal():
    def method(name):
        return lambda p, y, new: make(name).fit(np.log(p), y).predict_proba(np.log(new))

    names = ("temperature", "focal-structured", "venn-abers")
    none = {"none": lambda p, y, new: new}
    return {"ece": ece} | none | {name: method(name) for name in names}


def scikit_learn():
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    def temperature(p, y, new):
        frozen = FrozenEstimator(Given().fit(p))
        return CalibratedClassifierCV(frozen, method="temperature").fit(p, y).predict_proba(new)

    return {"temperature": temperature}


def torchmetrics():
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error as error

    return {"ece": lambda y, p: error(torch.tensor(p), torch.tensor(y), p.shape[1], n_bins=15)}


def netcal():
    from netcal.metrics import ECE
    from netcal.scaling import LogisticCalibrationDependent, TemperatureScaling

    def temperature(p, y, new):
        scaling = TemperatureScaling()
        scaling.fit(p, y)
        return scaling.transform(new)

    def detection():
        """Boxes whose precision falls from left to right at the same confidence."""
        rng = np.random.default_rng(0)
        c, x = rng.uniform(0.3, 0.99, 4000), rng.uniform(size=4000)
        boxes, hit = np.stack([c, x], axis=1), (rng.uniform(size=4000) < c * (1 - x / 2)) * 1
        scaling = LogisticCalibrationDependent(detection=True)
        scaling.fit(boxes[:2000], hit[:2000])
        after = np.stack([scaling.transform(boxes[2000:]).ravel(), x[2000:]], axis=1)
        error = ECE([10, 5], detection=True)
        before, after = (error.measure(b, hit[2000:]) for b in (boxes[2000:], after))
        return {"detection ECE before": before, "after": after}

    checks = {"ece": lambda y, p: ECE(15).measure(p, y), "temperature": temperature}
    return checks | {"extra": detection}


def probmetrics():
    import torch
    from probmetrics.calibrators import get_calibrator
    from probmetrics.distributions import CategoricalDirac, CategoricalProbs
    from probmetrics.metrics import CalibrationError

    def error(y, p):
        truth = CategoricalDirac(torch.tensor(y), p.shape[1])
        return CalibrationError(n_bins=15).compute(truth, CategoricalProbs(torch.tensor(p)))

    def method(name):
        return lambda p, y, new: get_calibrator(name).fit(p, y).predict_proba(new)

    return {"ece": error} | {name: method(name) for name in ("temp-scaling", "sms")}


def mapie():
    from mapie.calibration import VennAbersCalibrator
    from mapie.classification import SplitConformalClassifier
    from mapie.metrics.calibration import expected_calibration_error as error

    def venn_abers(p, y, new):
        return VennAbersCalibrator(Given().fit(p), cv="prefit").fit(p, y).predict_proba(new)

    def sets():
        (p, y), (new, truth) = probabilities()
        sets = SplitConformalClassifier(Given().fit(p), confidence_level=0.99, prefit=True)
        inside = sets.conformalize(p, y).predict_set(new)[1][:, :, 0]
        hit = inside[np.arange(len(truth)), truth]
        return {"level": 0.99, "coverage": hit.mean(), "labels per set": inside.sum(axis=1).mean()}

    def confidence_error(bins):
        return lambda y, p: error((p.argmax(axis=1) == y) * 1, p, bins, "uniform")

    checks = {"ece": confidence_error(15), "ece, num_bins=16": confidence_error(16)}
    return checks | {"venn-abers": venn_abers, "extra": sets}


def venn_abers():
    from venn_abers import VennAbersCalibrator

    def kind(name):
        return lambda p, y, new: VennAbersCalibrator().predict_proba(
            p_cal=p, y_cal=y, p_test=new, va_type=name
        )

    return {"venn-abers": kind("one_vs_one"), "venn-abers one-vs-all": kind("one_vs_all")}


def uncertainty_toolbox():
    from uncertainty_toolbox import mean_absolute_calibration_error as error
    from uncertainty_toolbox.recalibration import get_std_recalibrator

    def regression():
        """A normal forecast whose standard deviation is half of the truth."""
        mean, fit, new = np.random.default_rng(0).normal(size=(3, 2000))
        half = np.full(2000, 0.5)
        std = get_std_recalibrator(mean, half, mean + fit)(half)
        before, after = error(mean, half, mean + new), error(mean, std, mean + new)
        return {"std": std[0], "calibration error before": before, "after": after}

    return {"extra": regression}


def torch_uncertainty():
    from torch_uncertainty.metrics import CalibrationError

    return {"ece": lambda y, p: CalibrationError("multiclass", num_classes=p.shape[1])(p, y)}


PEERS = (focalcal, scikit_learn, torchmetrics, netcal, probmetrics, mapie, venn_abers)
PEERS += (uncertainty_toolbox, torch_uncertainty)


def probabilities():
    return [(softmax(s.logits.astype(float), axis=1), np.asarray(s.labels)) for s in resnet18()]


def timed(program, *args):
    seconds = []
    for _ in range(3):
        start = time.process_time()
        result = program(*args)
        seconds.append(time.process_time() - start)
    return np.asarray(result), min(seconds)


def score(run, p, y, new, truth):
    q, seconds = timed(run, p, y, new)
    nll = -np.log(q[np.arange(len(truth)), truth]).mean()
    nll = nll if np.isfinite(nll) else "inf"  # JSON has no infinity
    return {"nll": nll, "ece": ece(truth, q), "seconds": seconds}


def check(checks):
    """All that one peer can do, each with its result or its error."""
    (p, y), (new, truth) = probabilities()
    mended = focalcal()["temperature"](p, y, new)
    ones = np.array([[1.0, 0, 0]] * 50 + [[0.95, 0.05, 0]] * 50)
    answers = np.array([0] * 40 + [1] * 5 + [2] * 5 + [0] * 50)
    zeros = [q.round(2) / q.round(2).sum(axis=1, keepdims=True) for q in (p, new)]
    cat = [np.log(q[:, 3]) - np.log1p(-q[:, 3]) for q in (p, new)]  # class 3 against the rest
    found = {}
    for name, run in checks.items():
        try:
            if name == "extra":
                found[name] = run()
            elif name.startswith("ece"):
                after, seconds = timed(run, truth, mended)
                found[name] = {"test": run(truth, new), "after temperature": after}
                found[name] |= {"confidence 1": run(answers, ones), "seconds": seconds}
            else:
                found[name] = score(run, p, y, new, truth)
                found[name]["zeros"] = score(run, zeros[0], y, zeros[1], truth)
            if name == "venn-abers":
                for kind, digits in (("binary", 15), ("binary, three decimals", 3)):
                    old, fresh = (expit(np.stack([-s, s], axis=1).round(digits)) for s in cat)
                    ours = focalcal()[name](old, (y == 3) * 1, fresh)
                    theirs, seconds = timed(run, old, (y == 3) * 1, fresh)
                    found[name][kind] = {"difference": abs(theirs - ours).max(), "seconds": seconds}
        except Exception as e:
            found[name] = {"error": f"{type(e).__name__}: {e}"}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("peers.json"))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    np.seterr(divide="ignore")
    found = {"provenance": provenance()}
    for peer in PEERS:
        name = peer.__name__.replace("_", "-")
        try:
            checks = peer()
            found[name] = {"version": importlib.metadata.version(name), **check(checks)}
        except ImportError as e:
            found[name] = {"missing": str(e)}
    text = json.dumps(found, indent=1, default=float)
    print(text)
    args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
