"""Data sets by name."""

import doctest

import pytest

import focalcal_papers.data.registry
from focalcal.errors import InputError
from focalcal_papers.data import DATASETS, dataset_settings, load, needs_folder


def test_examples():
    assert doctest.testmod(focalcal_papers.data.registry).failed == 0


def test_bad_requests():
    with pytest.raises(InputError, match=r"data set of 20newsgroups, .*; got 'imagenet'"):
        load("imagenet")
    with pytest.raises(InputError, match=r"settings of blobs among .*got \['length'\]"):
        load("blobs", length=3)


def test_every_set_says_what_it_takes():
    for name in DATASETS:
        assert "seed" not in dataset_settings(name)
    assert needs_folder("cifar10")
    assert not needs_folder("blobs")
