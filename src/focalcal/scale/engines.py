"""Engines: map a function over partitions and merge, on local threads or a Dask cluster.

Partial results are merged in a fixed tree over the partitions in order, so results are
bit-identical for every engine and number of workers, even if workers die.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial, reduce
from itertools import islice
from typing import Any, TypeVar

from focalcal._blocks import available_cores, one_thread
from focalcal.errors import EngineError, FocalcalError, InputError, needing

P = TypeVar("P")
T = TypeVar("T")
Progress = Callable[[float], None]

FAN_IN = 16
"""Partial results merged at a time."""
MAX_TASKS = 10_000
"""More partitions than this are bundled, to spare a scheduler millions of tasks."""
ENGINES = ("stream", "dask")


class Engine:
    """`passes` counts the calls of `map_reduce`, each of which reads every partition once."""

    passes = 0

    def map_reduce(
        self,
        function: Callable[[P], T],
        partitions: Sequence[P],
        merge: Callable[[T, T], T],
        progress: Progress | None = None,
    ) -> T:
        """`function` of every partition, merged. `merge` must not change its arguments."""
        self.passes += 1
        tick = progress or (lambda fraction: None)
        result = self._reduce(partial(_run, function, merge), bundle(partitions), merge, tick)
        tick(1.0)
        return result

    def _reduce(self, work: Any, bundles: list[Any], merge: Any, tick: Progress) -> Any:
        """`work` of every bundle, merged in the tree of `merged`."""


class StreamEngine(Engine):
    """Local threads; at most two partitions per thread are in progress at a time.

    >>> StreamEngine().map_reduce(abs, [-1, -2, -3], lambda a, b: a + b)
    6
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = available_cores() if threads is None else threads
        if self.threads < 1:
            raise InputError(f"expected at least one thread, got {threads}")

    def _reduce(self, work: Any, bundles: list[Any], merge: Any, tick: Progress) -> Any:
        pool = ThreadPoolExecutor(self.threads)

        def results() -> Iterator[Any]:
            waiting: deque[Any] = deque()
            for i, part in enumerate(bundles):
                waiting.append(pool.submit(work, part))
                if len(waiting) >= 2 * self.threads:
                    yield waiting.popleft().result()
                    tick(i / len(bundles))
            while waiting:
                yield waiting.popleft().result()

        try:
            return merged(merge, results(), len(bundles))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class DaskEngine(Engine):
    """A Dask cluster: the given scheduler, or a local cluster with one process per core.

    Use it as a context manager. Workers must see the files under the same paths. If a worker dies,
    Dask replaces it and repeats its partitions; the result is the same.
    """

    def __init__(self, scheduler: str | None = None, workers: int | None = None) -> None:
        with needing("dask.distributed", "dask", "the dask engine"):
            import distributed
        self._distributed = distributed
        self._cluster = None
        try:
            if scheduler is None:
                self._cluster = self._distributed.LocalCluster(
                    n_workers=workers or available_cores(),
                    threads_per_worker=1,
                    dashboard_address="127.0.0.1:0",  # any port: 8787 may be taken
                    preload="focalcal.scale._worker",
                )
            self.client = self._distributed.Client(self._cluster or scheduler)
        except (OSError, ValueError) as error:
            self.close()
            raise EngineError(
                f"expected a Dask scheduler at {scheduler or 'this machine'}, got: {error}; "
                "check the address and that the scheduler runs"
            ) from error

    def __enter__(self) -> DaskEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect from the cluster, and stop it if it was started here."""
        for part in (getattr(self, "client", None), self._cluster):
            if part is not None:
                # The scheduler may be gone.
                with contextlib.suppress(OSError):
                    part.close(timeout=5)

    def _reduce(self, work: Any, bundles: list[Any], merge: Any, tick: Progress) -> Any:
        futures: list[Any] = []
        submit = partial(self.client.submit, pure=False)
        try:
            self._check_workers()
            futures = [submit(work, part) for part in bundles]
            while len(futures) > 1:
                groups = [futures[i : i + FAN_IN] for i in range(0, len(futures), FAN_IN)]
                # Drops the last references to the previous futures, which frees their memory.
                futures = [submit(reduce, merge, group) for group in groups]
                if len(futures) > 1:
                    for i, future in enumerate(self._distributed.as_completed(futures)):
                        if future.status == "error":
                            future.result()
                        tick((i + 1) / (len(futures) + 1))
            return futures[0].result()
        except FocalcalError:
            raise
        except KeyboardInterrupt:
            self.client.cancel(futures)
            raise
        except self._failures() as error:
            raise EngineError(
                f"the Dask cluster failed ({type(error).__name__}: {error}); no partial file was "
                "written: check the scheduler and its workers' logs, then run again"
            ) from error

    def _check_workers(self) -> None:
        """Workers must have this version: others fail to load our functions and restart forever."""
        import focalcal

        if self.client.scheduler is None:
            raise OSError("the connection to the scheduler is closed")
        try:
            # A builtin, which any worker can run.
            found = self.client.run(eval, "__import__('focalcal').__version__", on_error="return")
        # Errors on workers are returned, not raised, so these mean a closed connection.
        except (RuntimeError, AttributeError) as error:
            raise OSError(f"the connection to the scheduler is closed ({error})") from error
        for worker, version in found.items():
            gone = isinstance(version, OSError)  # the worker just died; Dask repeats its work
            if version != focalcal.__version__ and not gone:
                raise EngineError(
                    f"expected focalcal {focalcal.__version__} on every Dask worker, got "
                    f"{version if isinstance(version, str) else repr(version)} on {worker}; "
                    "install the same version there"
                )

    def _failures(self) -> tuple[type[BaseException], ...]:
        # Older versions of Dask do not have this error.
        closed = getattr(self._distributed.client, "ClosedClientError", OSError)
        return closed, CancelledError, self._distributed.scheduler.KilledWorker, OSError


@contextlib.contextmanager
def open_engine(name: str = "stream", scheduler: str | None = None) -> Iterator[Engine]:
    """An engine by its command-line name; a scheduler address requires Dask."""
    if name not in ENGINES:
        raise InputError(f"expected an engine of {', '.join(ENGINES)}; got {name!r}")
    if name == "stream" and scheduler is not None:
        raise InputError(f"expected --engine dask with the scheduler {scheduler}, got stream")
    if name == "stream":
        yield StreamEngine()
    else:
        with DaskEngine(scheduler) as engine:
            yield engine


def bundle(partitions: Sequence[P]) -> list[tuple[P, ...]]:
    """At most MAX_TASKS groups of consecutive partitions."""
    if not partitions:
        raise InputError("expected at least one partition, got none")
    size = -(-len(partitions) // MAX_TASKS)
    return [tuple(partitions[i : i + size]) for i in range(0, len(partitions), size)]


def _run(function: Callable[[P], T], merge: Callable[[T, T], T], parts: tuple[P, ...]) -> T:
    with one_thread():
        return reduce(merge, map(function, parts))


def merged(merge: Callable[[T, T], T], results: Iterator[T], count: int) -> T:
    """The root of the merge tree over `count` results; one result per level is held at a time.

    >>> merged(lambda a, b: f"({a}{b})", iter("abc"), 3)
    '((ab)c)'
    """

    def level(below: Iterator[T], count: int) -> Iterator[T]:
        return (reduce(merge, islice(below, FAN_IN)) for _ in range(count))

    while count > 1:
        count = -(-count // FAN_IN)
        results = level(results, count)
    return next(results)
