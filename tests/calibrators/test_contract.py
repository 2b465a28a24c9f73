"""What every registered calibrator promises, whatever its method."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold, cross_val_predict, cross_val_score

from calibrators.conftest import mean_nll
from focalcal import calibrators
from focalcal.calibrators import METHODS, load, make
from focalcal.errors import FitWarning, InputError

pytestmark = pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")

every_method = pytest.mark.parametrize("name", METHODS)
NLL_METHODS = (
    "temperature",
    "focal-temperature",
    "ensemble-temperature",
    "vector",
    "matrix",
    "dirichlet",
    "structured-vector",
    "structured-matrix",
)
"""Those that minimise the NLL itself, from a start no worse than the identity."""


@pytest.fixture(scope="module")
def cases(calibrated_data):
    """Over-confident logits and labels of each shape, by task."""
    z, y = calibrated_data(240, 4, seed=1)
    b, t = calibrated_data(240, 2, seed=2)
    s = 2 * (b[:, 1] - b[:, 0])
    return {
        "multiclass": (2 * z, y),
        "binary (N,)": (s, t),
        "binary (N, 1)": (s[:, None], t),
        "binary (N, 2)": (2 * b, t),
    }


SHAPES = ["multiclass", "binary (N,)", "binary (N, 1)", "binary (N, 2)"]


def fitted(name, data, **params):
    return make(name, **params).fit(*data)


@every_method
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_probabilities(cases, name, shape):
    z, y = cases[shape]
    p = fitted(name, (z, y)).predict_proba(z)
    assert p.shape == (240, 4 if shape == "multiclass" else 2)
    assert np.isfinite(p).all()
    assert (p >= 0).all()
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-9)


@every_method
def test_binary_shapes_agree(cases, name):
    one, column = (
        fitted(name, cases[s]).predict_proba(cases[s][0]) for s in ("binary (N,)", "binary (N, 1)")
    )
    np.testing.assert_array_equal(one, column)


@every_method
def test_multilabel_is_one_binary_problem_per_label(cases, name):
    s, y = cases["binary (N,)"]
    z, labels = np.stack([s, -s], axis=1), np.stack([y, 1 - y], axis=1)
    both = make(name, task="multilabel").fit(z, labels)
    p = both.predict_proba(z)
    assert p.shape == (240, 2)
    np.testing.assert_array_equal(p[:, 0], fitted(name, (s, y)).predict_proba(s)[:, 1])
    assert both.predict(z).shape == (240, 2)
    np.testing.assert_allclose(np.exp(both.predict_log_proba(z)), p, rtol=1e-9, atol=1e-12)


@every_method
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_and_torch_keep_kind_and_precision(cases, name, dtype):
    torch = pytest.importorskip("torch")
    z, y = cases["multiclass"]
    z = z.astype(dtype)
    p = fitted(name, (z, y)).predict_proba(z)
    assert isinstance(p, np.ndarray)
    assert p.dtype == dtype
    t = torch.as_tensor(z)
    q = fitted(name, (t, torch.as_tensor(y))).predict_proba(t)
    assert isinstance(q, torch.Tensor)
    assert q.dtype == t.dtype
    with_graph = fitted(name, (t.clone().requires_grad_(), torch.as_tensor(y)))
    assert torch.equal(with_graph.predict_proba(t), q)
    np.testing.assert_allclose(q.numpy(), p, atol=2e-4 if dtype == np.float32 else 1e-6)
    # the same fitted calibrator on the other kind of array
    r = fitted(name, (z, y)).predict_proba(t)
    # Isotonic maps are steep between close samples: they blow up the last bit of an exponential.
    single = 1e-4 if name == "isotonic" else 2e-6
    np.testing.assert_allclose(r.numpy(), p, atol=single if dtype == np.float32 else 1e-12)


@every_method
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_labels_of_every_integer_type(cases, name, kind):
    """torch reads uint8 indices as a mask, and indexes with few other types."""
    z, y = cases["multiclass"]
    expected = fitted(name, (z, y)).predict_proba(z)
    names = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64"]
    for dtype in names if name != "auto" else ["int8", "uint8"]:
        labels = y.astype(dtype)
        if kind == "torch":
            torch = pytest.importorskip("torch")
            got = make(name).fit(torch.as_tensor(z), torch.as_tensor(labels)).predict_proba(z)
            np.testing.assert_allclose(got, expected, atol=1e-6)
        else:
            np.testing.assert_array_equal(make(name).fit(z, labels).predict_proba(z), expected)


@pytest.mark.parametrize("name", ["temperature", "structured-vector", "platt", "histogram"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_8_bit_labels_of_many_classes(name, kind, calibrated_data):
    """200 is −56 as an int8: valid labels were refused."""
    z, y = calibrated_data(1000, 200, scale=3.0)
    y %= 128
    expected = fitted(name, (z, y)).predict_proba(z)
    for dtype in ("int8", "uint8"):
        data = z, y.astype(dtype)
        if kind == "torch":
            data = tuple(pytest.importorskip("torch").as_tensor(a) for a in data)
        np.testing.assert_allclose(fitted(name, data).predict_proba(z), expected, atol=1e-6)


@every_method
def test_scikit_learn_rules(cases, name):
    calibrator = make(name)
    twin = clone(calibrator)
    assert type(twin) is type(calibrator)
    assert twin.get_params().keys() == calibrator.get_params().keys()
    assert "task" in calibrator.get_params()
    before = dict(vars(calibrator))
    assert not [a for a in before if a.endswith("_")], "__init__ must only store settings"
    assert calibrator.fit(*cases["multiclass"]) is calibrator
    for key, value in before.items():
        assert vars(calibrator)[key] is value, f"fit changed the setting {key}"
    assert calibrator.set_params(task="multilabel").task == "multilabel"


@pytest.mark.parametrize("name", ["temperature", "platt"])
@pytest.mark.parametrize("shape", ["multiclass", "binary (N,)", "binary (N, 2)"])
def test_scikit_learn_cross_validates(cases, name, shape):
    """It needs `classes_`, stratifies the folds of classifiers and scores their probabilities."""
    z, y = cases[shape]
    order = np.argsort(y, kind="stable")  # folds in this order would miss a class
    z, y = z[order], y[order]
    got = cross_val_predict(make(name), z, y, cv=2, method="predict_proba")
    for train, test in StratifiedKFold(2).split(z, y):
        fitted = make(name).fit(z[train], y[train])
        np.testing.assert_array_equal(got[test], fitted.predict_proba(z[test]))
        np.testing.assert_array_equal(fitted.classes_, np.arange(got.shape[1]))
        assert fitted.score(z[test], y[test]) == np.mean(fitted.predict(z[test]) == y[test])
    losses = cross_val_score(make(name), z, y, cv=2, scoring="neg_log_loss")
    assert -losses.mean() == pytest.approx(log_loss(y, got), rel=1e-6)


@pytest.mark.filterwarnings("ignore:y are text")
@pytest.mark.parametrize("shape", ["multiclass", "binary (N,)"])
def test_scores_labels_that_are_texts(cases, shape, tmp_path):
    z, y = cases[shape]
    names = np.array(["ant", "bee", "cat", "dog"])[: y.max() + 1]
    expected = cross_val_score(make("temperature"), z, y, cv=3)
    np.testing.assert_array_equal(cross_val_score(make("temperature"), z, names[y], cv=3), expected)
    fitted = make("temperature").fit(z, names[y])
    fitted.save(tmp_path / "cal.json")
    for one in (fitted, load(tmp_path / "cal.json")):
        # One class alone says nothing of its place: the names are those of the fit.
        ones = y == 1
        assert one.score(z[ones], names[y[ones]]) == one.score(z[ones], y[ones])
        with pytest.raises(InputError, match="'elk' at row 0"):
            one.score(z[:1], ["elk"])


@pytest.mark.parametrize("name", ["auto", "prior-correction"])
def test_a_warning_of_parts_and_whole_is_given_once(name, calibrated_data):
    z, y = calibrated_data(40, 3)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    params = {"calibrator": "beta"} if name == "prior-correction" else {}
    with pytest.warns(FitWarning) as caught:
        fitted = make(name, **params).fit(p, np.minimum(y, 1))
    for text in ("look like probabilities", "no calibration sample of 1 of 3 classes"):
        assert sum(text in str(c.message) for c in caught) == 1
        assert sum(text in note for note in fitted.diagnostics_.warnings) == 1


@every_method
def test_half_precision_logits_of_a_large_sum(cases, name):
    """Their sum overflows above 65504, and NumPy warned of it."""
    z, y = cases["multiclass"]
    half = (z - z.max() - 100).astype(np.float16)
    p = fitted(name, (half, y)).predict_proba(half)
    np.testing.assert_array_equal(
        p, fitted(name, (half.astype(np.float32), y)).predict_proba(half.astype(np.float32))
    )


@every_method
def test_refit_equals_fit(cases, name, calibrated_data):
    z, y = cases["multiclass"]
    other = calibrated_data(200, 3, seed=9)
    again = make(name).fit(*other).fit(z, y)
    np.testing.assert_array_equal(again.predict_proba(z), fitted(name, (z, y)).predict_proba(z))


@every_method
def test_inputs_are_not_changed(cases, name):
    z, y = (a.copy() for a in cases["multiclass"])
    w = np.ones(len(y))
    calibrator = make(name).fit(z, y, sample_weight=w)
    calibrator.predict_proba(z)
    np.testing.assert_array_equal(z, cases["multiclass"][0])
    np.testing.assert_array_equal(y, cases["multiclass"][1])
    assert (w == 1).all()


@every_method
@pytest.mark.parametrize("task", ["auto", "multilabel"])
def test_saved_and_loaded_predicts_bit_for_bit(cases, name, task, tmp_path):
    z, y = cases["multiclass"]
    if task == "multilabel":
        z, y = z[:, :2], (z[:, :2] > 0.1).astype(int) ^ (np.arange(480).reshape(240, 2) % 7 == 0)
    calibrator = make(name, task=task).fit(z, y)
    calibrator.save(tmp_path / "cal.json")
    again = load(tmp_path / "cal.json")
    assert type(again) is type(calibrator)
    assert again.diagnostics_ == calibrator.diagnostics_
    for data in (z, z.astype(np.float32)):
        np.testing.assert_array_equal(again.predict_proba(data), calibrator.predict_proba(data))


@every_method
def test_accuracy_is_kept_where_claimed(cases, name):
    if not METHODS[name].preserves_accuracy:
        pytest.skip("makes no such claim")
    for shape in ("multiclass", "binary (N, 2)"):
        z, y = cases[shape]
        np.testing.assert_array_equal(fitted(name, (z, y)).predict(z), z.argmax(axis=1))


@pytest.mark.parametrize("name", NLL_METHODS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [0.2, 1.0, 5.0])
def test_fitted_nll_is_not_above_the_identity(cases, name, shape, scale):
    z, y = cases[shape]
    z = z * scale
    identity = mean_nll(fitted("identity", (z, y)).predict_log_proba(z), y)
    calibrator = fitted(name, (z, y))
    found = mean_nll(calibrator.predict_log_proba(z), y)
    assert found <= identity + 1e-9
    assert calibrator.diagnostics_.before == pytest.approx(identity, rel=1e-9)
    assert calibrator.diagnostics_.after == pytest.approx(found, abs=1e-7)


@every_method
def test_weights_equal_repetition(cases, name):
    z, y = cases["multiclass"]
    w = np.random.default_rng(0).integers(0, 4, len(y))
    a = make(name).fit(z, y, sample_weight=w)
    b = make(name).fit(np.repeat(z, w, axis=0), np.repeat(y, w))
    np.testing.assert_allclose(a.predict_proba(z), b.predict_proba(z), atol=2e-5)


@every_method
@pytest.mark.parametrize(
    ("first", "others"),
    [(1e9, 1.0), (1e15, 1.0), (1e300, 1e300), (1e308, 1e308), (1.0, 1e-300), (5e-324, 5e-324)],
)
def test_extreme_weights_are_fitted_and_saved(cases, name, first, others, tmp_path):
    """Shares of ones rounded to 1, matrices were singular, sums infinite or 0: NaN or an error."""
    z, y = cases["multiclass"]
    z, y = z[:60], y[:60]
    calibrator = make(name).fit(z, y, np.where(np.arange(60) == 7, first, others))
    assert np.isfinite([calibrator.diagnostics_.before, calibrator.diagnostics_.after]).all()
    log_p = calibrator.predict_log_proba(z)
    assert np.isfinite(log_p).all()
    calibrator.save(tmp_path / "c.json")
    np.testing.assert_array_equal(load(tmp_path / "c.json").predict_log_proba(z), log_p)


@every_method
def test_a_sample_of_weight_zero_does_not_count(name, tmp_path):
    """Its label has a probability of zero: the loss before was NaN, and the fit was not saved."""
    rng = np.random.default_rng(0)
    p = rng.multinomial(10, [0.5, 0.3, 0.2], size=200) / 10
    y = (p.cumsum(axis=1) < rng.random((200, 1))).sum(axis=1).clip(0, 2)
    p[0], y[0] = [0.4, 0.6, 0.0], 2
    with np.errstate(divide="ignore"):
        z = np.log(p)
    fitted = make(name).fit(z, y, sample_weight=np.arange(200) > 0)
    without = make(name).fit(z[1:], y[1:])
    np.testing.assert_allclose(fitted.predict_proba(z), without.predict_proba(z), atol=1e-6)
    assert fitted.diagnostics_.before == pytest.approx(without.diagnostics_.before)
    assert fitted.diagnostics_.n_per_class == without.diagnostics_.n_per_class
    fitted.save(tmp_path / "cal.json")


@every_method
def test_bad_inputs_are_refused(cases, name):
    z, y = cases["multiclass"]
    calibrator = make(name)
    with pytest.raises(NotFittedError):
        calibrator.predict_proba(z)
    bad = z.copy()
    bad[3, 1] = np.nan
    with pytest.raises(InputError, match="row 3"):
        calibrator.fit(bad, y)
    with pytest.raises(InputError, match=r"0\.\.3"):
        calibrator.fit(z, y + 1)
    with pytest.raises(InputError, match="shape"):
        calibrator.fit(z, y[:-1])
    with pytest.raises(InputError, match="integer"):
        calibrator.fit(z, y + 0.5)
    with pytest.raises(InputError, match="sample_weight"):
        calibrator.fit(z, y, sample_weight=-np.ones(len(y)))
    with pytest.raises(InputError, match="N >= 1"):
        calibrator.fit(z[:0], y[:0])
    with pytest.raises(InputError, match="task"):
        make(name, task="regression").fit(z, y)
    with pytest.raises(InputError, match="multi-label"):
        make(name, task="multilabel").fit(z, y)
    calibrator.fit(z, y)
    with pytest.raises(InputError, match="4 classes"):
        calibrator.predict_proba(z[:, :3])
    with pytest.raises(InputError, match="finite"):
        calibrator.predict_proba(bad)


@every_method
def test_extreme_logits_stay_finite(cases, name):
    z, y = cases["multiclass"]
    extreme = np.where(z > 0, 1e4, -1e4)
    p = fitted(name, (extreme, y)).predict_proba(extreme)
    assert np.isfinite(p).all()
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-9)


@every_method
@pytest.mark.parametrize("n", [1, 3])
def test_few_samples_are_said(name, calibrated_data, n):
    z, y = calibrated_data(n, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calibrator = make(name).fit(z, y)
    assert np.isfinite(calibrator.predict_proba(z)).all()
    if calibrator.state:
        assert any(issubclass(c.category, FitWarning) for c in caught)
        assert calibrator.diagnostics_.warnings


@every_method
def test_diagnostics_are_filled(cases, name):
    z, y = cases["multiclass"]
    d = fitted(name, (z, y)).diagnostics_
    assert d.n == len(y)
    assert d.n_per_class == tuple(np.bincount(y, minlength=4))
    assert np.isfinite([d.before, d.after]).all()
    assert d.iterations >= 0


def test_registry_is_sound():
    assert len(set(METHODS)) == len(METHODS)
    for name, kind in METHODS.items():
        assert kind.method == name
        assert 0 < len(kind.summary) < 90
        assert getattr(calibrators, kind.__name__) is kind
        assert kind.__name__ in calibrators.__all__


def test_make_refuses_what_it_does_not_know():
    with pytest.raises(InputError, match="temperature"):
        make("tempreture")
    with pytest.raises(InputError, match="objective"):
        make("temperature", gamma=1.0)


@every_method
@pytest.mark.parametrize("value", [{"a": 1}, "x", [[None]]])
def test_settings_of_another_type_are_errors_that_name_them(cases, name, value):
    """As `focalcal fit --set` can pass any JSON."""
    for setting in set(make(name).get_params(deep=False)):
        with pytest.raises(InputError, match="expected"):
            fitted(name, cases["multiclass"], **{setting: value})
