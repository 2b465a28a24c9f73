"""Loaded by local Dask workers, so that they leave Ctrl-C and errors to the caller."""

from __future__ import annotations

import logging
import signal
from typing import Any


def dask_setup(worker: Any) -> None:
    """Print no tracebacks: the caller handles Ctrl-C and task errors, and stops the cluster.

    A heartbeat in progress when the cluster stops would also be logged as an error.
    """
    del worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = logging.getLogger("distributed.worker")
    log.addFilter(lambda record: record.levelno != logging.ERROR)
