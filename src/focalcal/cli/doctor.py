"""`focalcal doctor`: installed and missing packages, hardware, threads."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
from pathlib import Path
from typing import Any

from rich.table import Table

from focalcal._blocks import available_cores
from focalcal.cli import app, terminal
from focalcal.provenance import provenance, version_of

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
NOT_FOR_USERS = ("all", "dev", "docs")
"""Extras that combine others or serve the development of this package."""


@app.command(example="focalcal doctor --json")
def doctor() -> terminal.Result:
    """Show versions, optional packages, GPU and threads.

    The exit code is 1 if a required package is missing.
    """
    with terminal.working("inspecting the installation"):
        record = _examined()
    whole = all(part["ok"] for part in record["needed"])
    return terminal.Result(record, _lines(record), 0 if whole else 1)


def _examined() -> dict[str, Any]:
    from focalcal.amx import cap_if_forbidden

    amx = cap_if_forbidden()  # before torch is used
    # Before provenance, which names a GPU only if torch is imported.
    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
    origin = provenance()
    gpu = None
    if torch is not None and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        gpu = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    return {
        "focalcal": origin["focalcal"],
        "commit": origin["commit"],
        "location": str(Path(__file__).parents[1]),
        "python": origin["python"],
        "platform": platform.platform(),
        **_requirements(importlib.metadata.requires("focalcal") or []),
        "hardware": origin["hardware"],
        "gpu": gpu,
        "amx": amx,
        "threads": _threads(torch),
    }


def _requirements(lines: list[str]) -> dict[str, Any]:
    """The required packages, and those of each extra, each with the installed version."""
    needed, extras = [], {}
    for line in lines:
        name = re.match(r"[\w.-]+", line)[0]
        found = re.search(r">=\s*([\d.]+)", line.split(";")[0])
        least, version = found[1] if found else "0", version_of(name)
        ok = version is not None and _numbers(version) >= _numbers(least)
        part = {"package": name, "version": version, "least": least, "ok": ok}
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if extra is None:
            needed.append(part)
        elif extra[1] not in NOT_FOR_USERS:
            extras.setdefault(extra[1], []).append(part)
    return {"needed": needed, "extras": extras}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.match(r"\d+(\.\d+)*", version)[0].split("."))


def _threads(torch: Any) -> dict[str, Any]:
    """Cores this process may use, and how many threads the numerical libraries will start."""
    import scipy.linalg  # noqa: F401  loads its BLAS, so that it is listed
    from threadpoolctl import threadpool_info

    record: dict[str, Any] = {
        "cores": os.cpu_count(),
        "usable_cores": available_cores(),
        "blas": max((pool["num_threads"] for pool in threadpool_info()), default=1),
        "environment": {v: os.environ[v] for v in THREAD_VARIABLES if v in os.environ},
    }
    if torch is not None:
        record["torch"] = torch.get_num_threads()
    return record


def _lines(record: dict[str, Any]) -> tuple[str, Table]:
    table = Table.grid(padding=(0, 2, 0, 2))
    table.add_row("at", record["location"])
    table.add_row("platform", record["platform"])
    for part in record["needed"]:
        if not part["ok"]:
            found = part["version"] or "nothing"
            needs = f"{part['package']} >= {part['least']}, found {found}"
            table.add_row("needs", needs, style="red")
    for extra, parts in record["extras"].items():
        missing = [p["package"] for p in parts if not p["ok"]]
        state = ", ".join(f"{p['package']} {p['version']}" for p in parts)
        if missing:
            state = f"absent ({', '.join(missing)}): pip install 'focalcal[{extra}]'"
        table.add_row(extra, state)
    t = record["threads"]
    threads = f"{t['usable_cores']} of {t['cores']} cores usable; BLAS {t['blas']}"
    threads += f", torch {t['torch']}" if "torch" in t else ""
    threads += "".join(f", {name}={value}" for name, value in t["environment"].items())
    table.add_row("gpu", record["gpu"] or "none that torch can use")
    table.add_row("amx", str(record["amx"]))
    table.add_row("threads", threads)
    commit = f" ({record['commit']})" if record["commit"] else ""
    return f"focalcal {record['focalcal']}{commit}, Python {record['python']}", table
