"""One small report that the tests of this folder share."""

from __future__ import annotations

import pytest

from focalcal.report import Model, Settings, report
from report.toys import METHODS, toy


@pytest.fixture(scope="session")
def model() -> Model:
    return Model("toy", *toy())


@pytest.fixture(scope="session")
def data(model):
    return report([model], Settings(methods=METHODS, resamples=30))


@pytest.fixture(scope="session")
def two():
    models = [Model("one", *toy(3, 800, 1.0)), Model("<two>", *toy(2, 800, 4.0))]
    return report(models, Settings(methods=("temperature",), resamples=20))
