"""Evaluate and temperature-scale 100 million predictions out of core, beside merely reading them.

    python benchmarks/scale.py                    # 1e8 × 10: 4.3 GB in a temporary folder
    python benchmarks/scale.py --rows 10000000    # a tenth
    python benchmarks/scale.py --engine dask      # on a local Dask cluster
    python benchmarks/scale.py --layout columns   # one column per class instead of a list
    python benchmarks/scale.py --cold             # from the disk each time
    python benchmarks/scale.py --json scale.json

Goals: evaluation at 0.55 of the speed of reading for lists and 0.45 for one column per class (which
is read twice as fast), peak memory under 1 GB, few passes.

Reading means: pyarrow decodes the same two columns of every row group into memory
(`read_row_group`), on as many threads as the passes use, and drops them. Files are as pyarrow
writes them by default (snappy, dictionary pages until they grow too large), logits as a fixed-size
list of float32, and were just written: they lie in the page cache for reading and passes alike,
the hardest case for the passes, because reading then never waits. `--cold` drops them from memory
before each reading and pass, as files larger than memory would be. All are timed in turn,
`--rounds` times, and the fastest of each is kept; processor time beside, for shared machines.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as pq

from focalcal import scale
from focalcal._blocks import available_cores
from focalcal.calibrators._newton import moment_sums
from focalcal.calibrators.sums import sums_above
from focalcal.formats.arrow import numpy_to_column
from focalcal.provenance import provenance
from focalcal.scale.evaluation import merge_by_slice, partition_statistics
from focalcal.scale.fitting import partition_sums

CLASSES, GROUP, FILE_ROWS = 10, 250_000, 5_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10**8)
    parser.add_argument("--engine", choices=["stream", "dask"], default="stream")
    parser.add_argument("--layout", choices=["list", "columns"], default="list")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true", help="drop the files from memory each time")
    parser.add_argument("--folder", help="where to put the files (default: a temporary folder)")
    parser.add_argument("--json", metavar="FILE", help="also write the numbers as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        results = measure(Path(folder), args.rows, args.engine, args.rounds, args.cold, args.layout)
    if args.json:
        from focalcal.files import write_text

        write_text(args.json, json.dumps({"provenance": provenance(), **results}, indent=2))


def generate(folder: Path, rows: int, layout: str) -> int:
    """Over-confident logits in float32 whose best temperature is 2; returns the bytes written."""
    rng = np.random.default_rng(0)
    # One block of noise is used with many scales and class orders: the generator must not be
    # the slowest part, and no pass can tell.
    noise = rng.normal(size=(GROUP, CLASSES)).astype(np.float32)
    gumbel = rng.gumbel(size=(GROUP, CLASSES)).astype(np.float32)
    written = 0
    for i, start in enumerate(range(0, rows, FILE_ROWS)):
        path = folder / f"part-{i:04d}.parquet"
        writer = None
        for at in range(start, min(start + FILE_ROWS, rows), GROUP):
            n = min(GROUP, rows - at)
            order = rng.permutation(CLASSES)
            z = (3 + 0.2 * rng.normal()) * noise[:n][:, order]
            y = np.argmax(z / 2 + np.roll(gumbel, rng.integers(GROUP), axis=0)[:n], axis=1)
            values = {"logits": numpy_to_column(z)}
            if layout == "columns":
                values = {f"logits_{k}": np.ascontiguousarray(z[:, k]) for k in range(CLASSES)}
            table = pyarrow.table(values | {"labels": y.astype(np.int32)})
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
        writer.close()
        written += path.stat().st_size
    return written


def read_only(source: scale.Source) -> None:
    """Decode both columns of all row groups, nothing else."""
    found = source.partitions[0].columns
    columns = [*found.values, *found.labels]

    def read(partition: scale.Partition) -> int:
        with pq.ParquetFile(partition.path) as file:
            group = file.read_row_group(partition.row_group, columns=columns, use_threads=False)
            return group.num_rows

    with ThreadPoolExecutor(available_cores()) as pool:
        total = sum(pool.map(read, source.partitions))
    if total != source.n:
        raise SystemExit(f"read {total} rows of {source.n}")


def passes_of(source: scale.Source, engine: scale.Engine) -> dict[str, Callable[[], Any]]:
    """Reading, and one pass of each kind."""
    run = partial(engine.map_reduce, partitions=source.partitions)

    def sums(function: Callable[..., np.ndarray], **settings: Any) -> Any:
        settings |= {"beta": 0.5, "quick": True}
        work = partial(partition_sums, function=function, floor=None, settings=settings)
        return run(work, merge=add)

    return {
        "read": lambda: read_only(source),
        "evaluate": lambda: run(
            partial(partition_statistics, bins=15, edges={}, quick=True, sums={}),
            merge=merge_by_slice,
        ),
        "temperature, first": lambda: sums(
            sums_above, then=moment_sums, floor=0.0, first=True, quick_first=True, weights=None
        ),
        "temperature": lambda: sums(moment_sums, weights=None),
    }


def measure(
    folder: Path, rows: int, name: str, rounds: int, cold: bool, layout: str
) -> dict[str, Any]:
    start = time.perf_counter()
    with ProcessPoolExecutor(1) as writer:  # whose memory does not count
        size = writer.submit(generate, folder, rows, layout).result()
    print(
        f"{rows:,} × {CLASSES} predictions, {size / 1e9:.2f} GB of parquet, "
        f"written in {time.perf_counter() - start:.0f} s; {available_cores()} cores, {name}, "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    source = scale.Source.open(folder)
    peak = Peak()
    with scale.open_engine(name) as engine, peak:
        programs = passes_of(source, engine)
        seconds, processor = ({key: [] for key in programs} for _ in range(2))
        for _ in range(rounds):  # in turn, so that a busy machine slows all alike
            for key, program in programs.items():
                if cold:
                    drop_from_memory(folder)
                wall, used = time.perf_counter(), time.process_time()
                program()
                seconds[key].append(time.perf_counter() - wall)
                processor[key].append(time.process_time() - used)
        start = time.perf_counter()
        fitted = scale.fit(source, "temperature", engine)
        whole = time.perf_counter() - start
        result = scale.statistics(source, engine).compute()
    for key in programs:
        taken, used = min(seconds[key]), min(processor[key])
        print(
            f"  {key:<20}{taken:7.1f} s {rows / taken / 1e6:7.2f} M rows/s "
            f"{min(seconds['read']) / taken:6.2f} of reading;  processor {used:6.1f} s "
            f"{min(processor['read']) / used:6.2f}"
        )
    print(
        f"  fit: T = {fitted.calibrator.temperature_:.9f} in {fitted.passes} passes, {whole:.1f} s"
    )
    print(
        f"  ECE = {result['ece'].value:.6f}, equal-mass {result['adaptive_ece'].value:.6f} "
        f"± {result['adaptive_ece'].error_bound:.1e}, in 1 pass"
    )
    print(f"  peak memory {peak.bytes / 1e9:.2f} GB (goal 1), load {os.getloadavg()[0]:.1f}")
    return {
        "rows": rows, "layout": layout, "bytes": size, "engine": name, "cores": available_cores(),
        "compression": "snappy", "cache": "cold" if cold else "warm", "seconds": seconds,
        "processor_seconds": processor if name == "stream" else None, "fit_seconds": whole,
        "passes": fitted.passes, "temperature": fitted.calibrator.temperature_,
        "ece": result["ece"].value, "peak_bytes": peak.bytes, "load": os.getloadavg(),
    }  # fmt: skip


def drop_from_memory(folder: Path) -> None:
    """Make the next reading of the files come from the disk."""
    os.sync()
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Peak:
    """The largest sum of resident memory of this process and its children while it is open."""

    def __enter__(self) -> Peak:
        self.bytes, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.bytes = max(self.bytes, own)

    def _watch(self) -> None:
        import psutil

        me = psutil.Process()
        while not self._stop.wait(0.5):
            total = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue
            self.bytes = max(self.bytes, total)


if __name__ == "__main__":
    main()
