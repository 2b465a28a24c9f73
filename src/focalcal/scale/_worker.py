"""Loaded by the Dask workers of this machine, which leave Ctrl-C and errors to the caller."""

from __future__ import annotations

import logging
import signal
from typing import Any


def dask_setup(worker: Any) -> None:
    """Print no tracebacks: the caller gets Ctrl-C and the errors of tasks, and ends the cluster.

    A heartbeat under way when the cluster ends would be logged as an error too.
    """
    del worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = logging.getLogger("distributed.worker")
    log.addFilter(lambda record: record.levelno != logging.ERROR)
