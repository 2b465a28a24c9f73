"""CPUs that report AMX inside a virtual machine that forbids it.

On these (for example Intel Sapphire Rapids or newer under Firecracker) oneDNN, and with it torch in
bfloat16, crashes with SIGILL. AMX is tried in a child process; if that crashes, oneDNN is limited
to older instruction sets.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

VARIABLE = "ONEDNN_MAX_CPU_ISA"
CAP = "AVX512_CORE_BF16"
CPUINFO = Path("/proc/cpuinfo")
PROBE = (
    "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(x, x)"
)


def cap_if_forbidden() -> str:
    """Set `ONEDNN_MAX_CPU_ISA` for this process and its children if AMX would crash them.

    Call it before the first operation in torch: oneDNN reads the variable once. A value that the
    user has set is kept. Returns the finding for `focalcal doctor`.
    """
    if VARIABLE in os.environ:
        return f"capped by {VARIABLE}={os.environ[VARIABLE]}"
    if not CPUINFO.is_file() or "amx_tile" not in CPUINFO.read_text():
        return "not announced by the CPU"
    if importlib.util.find_spec("torch") is None:
        return "announced; torch, which would use it, is not installed"
    if _works():
        return "usable"
    os.environ[VARIABLE] = CAP
    return f"announced but not permitted; {VARIABLE}={CAP} is set"


@functools.cache
def _works() -> bool:
    """Whether a child process computes a small bfloat16 product without crashing."""
    child = [sys.executable, "-c", PROBE]
    try:
        done = subprocess.run(child, capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
