"""Per-pixel predictions: flattening, ignored labels, streaming and calibration agree."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal import metrics
from focalcal._arrays import softmax
from focalcal.calibrators import TemperatureScaling
from focalcal.errors import InputError
from focalcal.integrations.segmentation import calibrated_pixels, pixels


@pytest.fixture
def images(sharp_data):
    """Logits (6, 3, 8, 5) and labels (6, 8, 5), a tenth of them ignored."""
    z, y = sharp_data(6 * 8 * 5, 3)
    y[::10] = 255
    return np.moveaxis(z.reshape(6, 8, 5, 3), -1, 1), y.reshape(6, 8, 5)


def test_every_labelled_pixel_is_one_row(images):
    logits, labels = images
    rows, flat = pixels(logits, labels, ignore_index=255)
    expected = [
        (logits[i, :, a, b], labels[i, a, b])
        for i in range(6)
        for a in range(8)
        for b in range(5)
        if labels[i, a, b] != 255
    ]
    np.testing.assert_array_equal(rows, [row for row, _ in expected])
    np.testing.assert_array_equal(flat, [label for _, label in expected])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_labels_that_are_no_integers_are_refused(images, dtype):
    logits, labels = images
    with pytest.raises(InputError, match=f"expected integer labels, got dtype {dtype}"):
        pixels(logits, labels.astype(dtype))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "int32"])
def test_labels_of_any_integer_type(images, dtype):
    torch = pytest.importorskip("torch")
    logits, labels = images
    expected = pixels(logits, labels, 255)[1]
    np.testing.assert_array_equal(pixels(logits, labels.astype(dtype), 255)[1], expected)
    given = torch.as_tensor(labels).to(getattr(torch, dtype))
    np.testing.assert_array_equal(pixels(torch.as_tensor(logits), given, 255)[1], expected)


def test_torch_gives_the_same_as_numpy(images):
    torch = pytest.importorskip("torch")
    logits, labels = images
    rows, flat = pixels(torch.as_tensor(logits), torch.as_tensor(labels), 255)
    expected, expected_labels = pixels(logits, labels, 255)
    np.testing.assert_array_equal(rows.numpy(), expected)
    np.testing.assert_array_equal(flat.numpy(), expected_labels)


def test_streaming_image_by_image_equals_one_pass(images):
    logits, labels = images
    probs = np.moveaxis(softmax(np.moveaxis(logits, 1, -1)), -1, 1)
    stats = metrics.CalibrationStats(n_classes=3)
    for p, y in zip(probs, labels):
        rows, flat = pixels(p[None], y[None], ignore_index=255)
        stats.update(flat, rows)
    rows, flat = pixels(probs, labels, ignore_index=255)
    assert stats.compute()["ece"].value == pytest.approx(metrics.ece(flat, rows), abs=1e-12)
    assert stats.n == len(flat)


def test_calibrated_pixels_keep_their_places(images):
    logits, labels = images
    calibrator = TemperatureScaling().fit(*pixels(logits, labels, 255))
    assert calibrator.temperature_ == pytest.approx(2, rel=0.4)
    proba = calibrated_pixels(calibrator, logits)
    assert proba.shape == logits.shape
    np.testing.assert_allclose(
        proba[2, :, 3, 4], softmax(logits[2, :, 3, 4] / calibrator.temperature_), rtol=1e-9
    )


def test_shapes_that_do_not_match_are_refused():
    with pytest.raises(InputError, match=r"\(2, 3, 4, 4\) and \(2, 4\)"):
        pixels(np.zeros((2, 3, 4, 4)), np.zeros((2, 4), int))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_an_ignored_label_that_the_type_cannot_hold_drops_no_class(kind):
    """−100 is 156 modulo 256, and 255 is −1."""
    values, labels = np.zeros((256, 200)), np.arange(256, dtype=np.uint8)
    if kind == "torch":
        torch = pytest.importorskip("torch")
        values, labels = torch.as_tensor(values), torch.as_tensor(labels)
    assert len(pixels(values, labels)[1]) == 256
    assert 156 in pixels(values, labels)[1].tolist()
    signed = (labels - 128).astype(np.int8) if kind == "numpy" else (labels.long() - 128).char()
    assert len(pixels(values, signed, ignore_index=255)[1]) == 256
    assert len(pixels(values, signed, ignore_index=-100)[1]) == 255
