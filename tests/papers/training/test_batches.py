from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from focalcal.errors import InputError
from focalcal_papers.data import load, normalise
from focalcal_papers.training import TrainConfig
from focalcal_papers.training.batches import PADDING, make_batches

CPU = torch.device("cpu")


def image_source(n=40, **changes):
    splits = load("synthetic_images", n_train=n + 8, calibration=8, n_test=5)
    config = TrainConfig(dataset="synthetic_images", model="resnet20", **changes)
    return make_batches(splits, config, CPU), splits


def test_crops_are_windows_of_the_padded_image():
    """Oracle: pad, slice and flip one image at a time with NumPy."""
    source, splits = image_source()
    source.start_epoch(3)
    where = torch.arange(40)
    got = source.batch(where)
    order = np.random.default_rng([0, 3]).permutation(40)
    assert torch.equal(got.targets, splits.train.labels[order])
    shifts, flips = set(), set()
    for row in range(40):
        image = splits.train.inputs[order[row]].numpy()
        padded = np.pad(image, ((0, 0), (PADDING, PADDING), (PADDING, PADDING)))
        found = None
        for down in range(9):
            for right in range(9):
                window = padded[:, down : down + 32, right : right + 32]
                for flip in (0, 1):
                    view = window[:, :, ::-1] if flip else window
                    tensor = torch.from_numpy(view.copy())[None]
                    expected = normalise(tensor, splits.mean, splits.std)[0]
                    if torch.equal(expected, got.inputs[row]):
                        found = (down, right, flip)
        assert found is not None
        shifts.add(found[:2])
        flips.add(found[2])
    assert len(shifts) > 20
    assert flips == {0, 1}
    assert got.inputs.is_contiguous(memory_format=torch.channels_last)


def test_an_epoch_visits_every_sample_once_and_epochs_differ():
    source, _ = image_source(augment="none")
    orders = []
    for epoch in (0, 1):
        source.start_epoch(epoch)
        orders.append(source._order.clone())
        assert torch.equal(orders[-1].sort().values, torch.arange(40))
    assert not torch.equal(*orders)
    other, _ = image_source(augment="none", seed=1)
    other.start_epoch(0)
    assert not torch.equal(other._order, orders[0])


def test_evaluation_is_the_normalised_split_in_order():
    source, splits = image_source(eval_batch_size=3)
    batches = list(source.evaluation("test"))
    images = torch.cat([b.inputs for b in batches])
    assert torch.equal(images, normalise(splits.test.inputs, splits.mean, splits.std))
    assert torch.equal(torch.cat([b.targets for b in batches]), splits.test.labels)
    some = torch.cat([b.targets for b in source.evaluation("train", 10)])
    assert torch.equal(some, splits.train.labels[::4])


def test_mixup_mixes_inputs_and_names_both_labels():
    source, _ = image_source(mixup=0.4, augment="none", batch_size=16)
    plain, _ = image_source(augment="none", batch_size=16)
    source.start_epoch(0)
    plain.start_epoch(0)
    where = torch.arange(16, 32)
    mixed, pure = source.batch(where), plain.batch(where)
    share = mixed.share[0]
    assert torch.equal(mixed.share, share.expand(16))
    expected = share * pure.inputs + (1 - share) * pure.inputs.roll(1, 0)
    torch.testing.assert_close(mixed.inputs, expected)
    assert torch.equal(mixed.partner, pure.targets.roll(1))
    assert source.batch(torch.arange(16)).share[0] != share


def test_mixup_of_trees_is_refused():
    class Trees:
        def __len__(self):
            return 1

    class Splits:
        class train:
            inputs = Trees()

    config = TrainConfig(dataset="sst", model="tree_lstm", mixup=0.2)
    with pytest.raises(InputError, match="mixup 0 with trees"):
        make_batches(Splits(), config, CPU)


def test_word_numbers_cannot_be_mixed():
    """In integers a share of .3 is 0: the inputs would be the neighbour's, the labels not."""
    blobs = load("blobs")
    words = [replace(part, inputs=part.inputs.to(torch.int64)) for part in blobs.parts().values()]
    splits = replace(blobs, **dict(zip(blobs.parts(), words)))
    config = TrainConfig(dataset="20newsgroups", model="text_cnn", mixup=0.2)
    with pytest.raises(InputError, match="mixup 0 with word numbers"):
        make_batches(splits, config, CPU)
    make_batches(splits, config.replace(mixup=0.0), CPU)
