"""Do the tests keep their level and the thresholds their promise? 1,000 simulations of each.

    python benchmarks/guarantees.py [compare|slices|fit|monitor|delays|decide] [--runs 1000]

Prints the tables of docs/GUARANTEES.md. Data are simulated, so that the truth is known: logits z of
K classes and labels drawn from softmax(z). Everything is seeded.
"""

from __future__ import annotations

import argparse
import functools
import time

import numpy as np
from scipy.stats import beta

from focalcal import decisions
from focalcal.bins import bin_samples
from focalcal.calibrators import TemperatureScaling
from focalcal.calibrators.by_slice import fit_by
from focalcal.metrics import METRICS, Monitor, calibration_test, compare, evaluate_by
from focalcal.metrics.sequential import (
    EProcess,
    accuracy_ratios,
    confidence_ratios,
    miscalibration_ratios,
)

CLASSES = 5


def softmax(z):
    p = np.exp(z - z.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def draw(rng, n, honesty=1.0, sharpness=2.0):
    """Logits, and labels from softmax(honesty · logits): calibrated if honesty is 1."""
    z = sharpness * rng.normal(size=(n, CLASSES))
    return z, np.argmax(honesty * z + rng.gumbel(size=z.shape), axis=1)


def table(header, rows):
    print("\n| " + " | ".join(header) + " |")
    print("|---" * len(header) + "|")
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)


def percent(x):
    return f"{100 * x:.1f} %"


# Comparisons


def equal_worth(rng, n, second=0.7):
    z, y = draw(rng, n)
    noise = [s * rng.normal(size=z.shape) for s in (0.7, second)]
    return y, softmax(1.5 * (z + noise[0])), softmax(1.5 * (z + noise[1]))


def one_sharper(rng, n):
    """Both are calibrated, but the second sees only a part of what the first sees."""
    seen, hidden = 1.4 * rng.normal(size=(2, n, CLASSES))
    y = np.argmax(seen + hidden + rng.gumbel(size=seen.shape), axis=1)
    blurred = np.mean(
        [softmax(seen + 1.4 * rng.normal(size=seen.shape)) for _ in range(50)], axis=0
    )
    return y, softmax(seen + hidden), blurred


def over_and_under(rng, n, temperatures):
    z, y = draw(rng, n)
    return y, softmax(temperatures[0] * z), softmax(temperatures[1] * z)


def balanced(metric, over=1.35):
    """The slope below 1 that has the same population value of a metric as the slope `over`."""
    y, a, _ = over_and_under(np.random.default_rng(1), 400_000, (over, 1.0))
    z, _ = draw(np.random.default_rng(1), 400_000)
    value = {"nll": lambda p: -np.log(p[np.arange(len(y)), y]).mean(), "ece": gap(y)}[metric]
    low, high = 0.4, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if value(softmax(middle * z)) > value(a) else (low, middle)
    return over, (low + high) / 2


def gap(y):
    from focalcal.metrics import ece

    return lambda p: ece(y, p)


def comparisons(runs):
    columns = ("accuracy", "nll", "brier", "ece", "classwise_ece")
    for name in set(METRICS) - set(columns):
        del METRICS[name]  # computing only what is shown takes a fifth of the time
    null = {
        "equal worth, both over-confident": (equal_worth, columns),
        "both calibrated, one sharper": (one_sharper, ("ece", "classwise_ece")),
        "over- and under-confident, equal NLL": (
            functools.partial(over_and_under, temperatures=balanced("nll")),
            ("nll",),
        ),
        "over- and under-confident, equal ECE": (
            functools.partial(over_and_under, temperatures=balanced("ece")),
            ("ece",),
        ),
    }
    rows = []
    for title, (make, names) in null.items():
        rng = np.random.default_rng(11)
        found = [compare(*make(rng, 500), resamples=200) for _ in range(runs)]
        share = {n: percent(np.mean([f[n].p_value <= 0.05 for f in found])) for n in names}
        rows.append((title, *(share.get(name, "") for name in columns)))
    print("\nShare of pairs told apart at 5 % where the metric is the same, 500 samples:")
    table(("models", *(METRICS[c].title for c in columns)), rows)
    rows = []
    for n in (250, 1000, 4000):
        rng = np.random.default_rng(12)
        few = max(runs // 5, 1)
        found = [compare(*equal_worth(rng, n, second=0.6), resamples=200) for _ in range(few)]
        power = [np.mean([f[c].p_value <= 0.05 for f in found]) for c in columns]
        change = np.mean([f["nll"].difference.value for f in found])
        rows.append((f"{n:,}", f"{change:.3f}", *map(percent, power)))
    print(f"\nShare told apart where the second is better, {few} pairs each:")
    table(("samples", "change of NLL", *(METRICS[c].title for c in columns)), rows)


# Slices


def false_discoveries(runs, m, n):
    """How often one of m calibrated slices of n samples is called miscalibrated."""
    rng, named, by = np.random.default_rng(21), 0, {"g": np.arange(m * n) % m}
    for run in range(runs):
        z, y = draw(rng, m * n)
        named += evaluate_by(y, softmax(z), by=by, resamples=2, seed=run).worst is not None
    return named / runs


def slices(runs):
    for name in set(METRICS) - {"ece", "confidence_gap"}:
        del METRICS[name]  # the test reads only these
    cases = ((5, 200), (20, 200), (10, 1000))
    rows = [(m, n, percent(false_discoveries(runs, m, n))) for m, n in cases]
    print("\nShare of data sets in which a calibrated slice is called miscalibrated:")
    table(("slices", "samples each", "at 5 %"), rows)
    rows = []
    few = max(runs // 5, 1)
    for n in (200, 500, 1000, 2000):
        rng = np.random.default_rng(22)
        found = np.zeros(2)
        for _ in range(few):
            z, y = draw(rng, 10 * n)
            group = np.arange(10 * n) % 10
            # One slice of ten whose labels obey flatter probabilities than it claims.
            honesty = np.where(group == 3, 0.75, 1.0)[:, None]
            y = np.argmax(honesty * z + rng.gumbel(size=z.shape), axis=1)
            worst = evaluate_by(y, softmax(z), by={"g": group}, resamples=2).worst
            found += worst is not None, worst is not None and worst.name == "g=3"
        rows.append((f"{n:,}", *map(percent, found / few)))
    print(f"\nOne of ten slices over-confident (slope 0.75), {few} data sets each:")
    table(("samples per slice", "some slice found", "the right one"), rows)


# A calibrator for each slice


def own_calibrators(runs):
    """Held-out NLL of one temperature for all, one for each slice, and what `fit --by` gives."""
    few, count, rows = max(runs // 10, 1), 5, []
    for spread in (0.0, 0.1, 0.3):
        for n in (100, 300, 1000, 3000):
            rng = np.random.default_rng(23)
            loss = np.array([_losses(rng, n, count, spread) for _ in range(few)])
            gain = loss[:, :1] - loss[:, 1:]
            better = [f"{1000 * m:+.2f}" for m in gain.mean(axis=0)]
            used = percent((gain[:, 1] != 0).mean())
            rows.append((spread, f"{n:,}", *better, used))
    print(f"\nFall of the held-out NLL, in thousandths, against one temperature, {few} runs:")
    table(("spread of ln T", "samples per slice", "one each", "fit --by", "slices used"), rows)


def _losses(rng, n, count, spread):
    honesty = np.exp(spread * rng.normal(size=count))
    z, y = (np.concatenate(part) for part in zip(*(draw(rng, n, h) for h in honesty)))
    index = np.repeat(np.arange(count), n)
    held = [draw(rng, 20_000, h) for h in honesty]
    found = fit_by(z, y, index)
    t = found.common.temperature_
    groups = [index == i for i in range(count)]
    own = [TemperatureScaling().fit(z[rows], y[rows]).temperature_ for rows in groups]
    shrunk = [getattr(found.slices.get(str(i)), "temperature_", t) for i in range(count)]

    def mean_loss(at):
        parts = [softmax(z / t)[np.arange(len(y)), y] for t, (z, y) in zip(at, held)]
        return np.mean([-np.log(p).mean() for p in parts])

    return [mean_loss(at) for at in ([t] * count, own, shrunk)]


# Monitoring


def history(rng, n, weeks, change=None, kind=""):
    """The week in which each test first has p ≤ 5 %, and in which any test raises an alarm."""
    z, y = draw(rng, 10 * n)
    monitor = Monitor(y, softmax(z))
    tests = {name: EProcess() for name in monitor.tests}
    past, first, edges = monitor.labelled, {}, monitor.edges
    naive = False
    for week in range(1, weeks + 1):
        changed = change is not None and week >= change
        honesty = 0.75 if changed and kind == "over-confident" else 1.0
        sharpness = 1.7 if changed and kind == "harder samples" else 2.0
        z, y = draw(rng, n, honesty, sharpness)
        p = softmax(z)
        if changed and kind == "some labels random":
            y = np.where(rng.random(n) < 0.05, rng.integers(0, CLASSES, n), y)
        c, correct = p.max(axis=1), p.argmax(axis=1) == y
        batch = bin_samples(c, correct, edges)
        ratios = {
            "calibrated": miscalibration_ratios(c, correct),
            "reference": accuracy_ratios(past, batch),
            "confidences": confidence_ratios(past, batch),
        }
        past = past + batch
        for name, r in ratios.items():
            tests[name] = tests[name].update(r)
            if tests[name].p_value <= 0.05:
                first.setdefault(name, week)
            if tests[name].p_value <= monitor.threshold:
                first.setdefault("any alarm", week)
        if change is None and not naive:
            test = calibration_test(y, p, resamples=99, seed=week)
            first.setdefault("week 1 alone", week) if week == 1 and test.p_value <= 0.05 else None
            if test.p_value <= 0.05:
                naive = True
                first.setdefault("a new test each week", week)
    return first


def monitoring(runs):
    columns = ("calibrated", "reference", "confidences", "any alarm")
    more = ("week 1 alone", "a new test each week")
    rows = []
    for n in (50, 200, 1000):
        rng = np.random.default_rng(31)
        found = [history(rng, n, 50) for _ in range(runs)]
        rows.append((n, *(percent(np.mean([c in f for f in found])) for c in (*columns, *more))))
    print("\nFalse alarms in 50 weekly looks (the last two: the ordinary test of calibration):")
    table(("samples a week", *columns, *more), rows)


def delays(runs):
    columns, rows = ("calibrated", "reference", "confidences", "any alarm"), []
    few = max(runs // 5, 1)
    for n in (50, 200, 1000):
        for kind in ("over-confident", "some labels random", "harder samples"):
            rng = np.random.default_rng(32)
            found = [history(rng, n, 40, 20, kind) for _ in range(few)]
            cells = []
            for c in columns:
                weeks = np.array([f.get(c, np.inf) for f in found])
                weeks = weeks[weeks >= 20] - 19
                middle = np.median(weeks)
                cells.append("not found" if np.isinf(middle) else f"{middle:g}")
            rows.append((n, kind, *cells))
    print(f"\nMedian number of weeks until a change in week 20 is found, {few} histories each:")
    table(("samples a week", "change", *columns), rows)


# Decisions


def confidences(rng, n, kind):
    """Confidences and the probability of error at each; without rng, their quantiles: the truth."""
    u = beta.ppf((np.arange(n) + 0.5) / n, 0.6, 2) if rng is None else rng.beta(0.6, 2, n)
    c = 1 - 0.5 * u
    if kind == "calibrated":
        return c, 1 - c
    if kind == "over-confident":
        return c, np.minimum(0.5, 2 * (1 - c))
    if kind == "rounded to 0.01":
        c = np.round(c, 2)
        return c, 1 - c
    return c, np.where(c > 0.995, 0.03, 1 - c)  # wrong labels among the most confident


def limited(goal, c, r, t):
    """The true value of what a goal limits, for the rule "decide alone from confidence t"."""
    alone = c >= t
    if goal == "target_accuracy":
        return r[alone].mean() if alone.any() else 0.0
    return (r * alone).mean() if goal == "max_error" else 1 - alone.mean()


def deciding(runs):
    goals = {"target_accuracy": (0.95, 0.05), "max_error": (0.02, 0.02)}
    goals["review_budget"] = (0.2, 0.2)
    rows = []
    for kind in ("calibrated", "over-confident", "rounded to 0.01", "errors at the top"):
        everyone = confidences(None, 50_000, kind)
        for goal, (value, limit) in goals.items():
            cells = []
            for n in (500, 2000, 10_000):
                rng = np.random.default_rng(41)
                kept, share = 0, 0.0
                for _ in range(runs):
                    c, r = confidences(rng, n, kind)
                    found = decisions.choose(c, rng.random(n) < r, goal, value)
                    kept += limited(goal, *everyone, found.threshold) <= limit
                    share += np.mean(everyone[0] >= found.threshold)
                cells += [percent(kept / runs), percent(share / runs)]
            rows.append((kind, f"{goal} {value:g}", *cells))
    print("\nHow often the promise holds, and the share decided alone; 500, 2,000, 10,000 samples:")
    table(("confidences", "goal", *["promise holds", "decided alone"] * 3), rows)
    rows = []
    costs = np.array([[0.0, 1.0], [5.0, 0.0]])
    rng = np.random.default_rng(42)
    truth = decisions.expected_cost(rng.beta(1, 1, 1_000_000), costs, abstain_cost=0.5)
    for n in (100, 500, 2000):
        held = np.zeros(2)
        for _ in range(runs):
            p = rng.beta(1, 1, n)
            y = (rng.random(n) < p).astype(int)
            cost = decisions.expected_cost(p, costs, abstain_cost=0.5, y_true=y)
            inside = cost.measured.low <= truth.expected.value <= cost.measured.high
            held += cost.at_most >= truth.expected.value, inside
        rows.append((n, *map(percent, held / runs)))
    print("\nMean cost of decisions with costs 1 and 5, asking for 0.5:")
    table(("samples", "bound holds", "interval covers"), rows)


PARTS = {
    "compare": comparisons,
    "slices": slices,
    "fit": own_calibrators,
    "monitor": monitoring,
    "delays": delays,
    "decide": deciding,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--runs", type=int, default=1000)
    arguments = parser.parse_args()
    for part in arguments.parts or PARTS:
        began = time.perf_counter()
        print(f"\n## {part}, {arguments.runs} runs", flush=True)
        PARTS[part](arguments.runs)
        print(f"\n({time.perf_counter() - began:.0f} s)")
