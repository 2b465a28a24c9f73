"""Loaded by the Dask workers of this machine: Ctrl-C is for the process that started them."""

from __future__ import annotations

import signal
from typing import Any


def dask_setup(worker: Any) -> None:
    """A terminal sends Ctrl-C to every process; a worker would print a traceback of its own."""
    del worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
