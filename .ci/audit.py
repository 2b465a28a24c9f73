"""Known faults of the pinned dependencies, from the public advisory lists, by pip-audit.

    python .ci/audit.py            # fails only if a fault is known
    python .ci/audit.py --strict   # `make audit`: also fails if a package could not be looked up

pip-audit lives in a virtual environment of its own, so that nothing it needs comes into ours. It
answers "no known vulnerabilities" also where a mirror of the index knows no advisories at all; here
packages that could not be looked up are counted and said.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".venv-audit"
PYTHON = HOME / "bin" / "python"
QUIET = ["--quiet", "--disable-pip-version-check"]


def main() -> int:
    strict = "--strict" in sys.argv[1:]
    try:
        report = audit()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"audit: NOT DONE, pip-audit could not be installed or run ({error})")
        return int(strict)
    faults = [
        f"{package['name']} {package['version']}: {fault['id']}, mended in "
        f"{', '.join(fault['fix_versions']) or 'no release yet'}"
        for package in report
        for fault in package.get("vulns", [])
    ]
    unknown = [package["name"] for package in report if "skip_reason" in package]
    for line in faults:
        print(f"audit: {line}")
    print(
        f"audit: {len(report) - len(unknown)} of {len(report)} packages looked up, "
        f"{len(faults)} known faults"
    )
    if unknown:
        print(
            f"audit: NOT DONE for {len(unknown)} packages ({', '.join(unknown[:3])}, …): "
            "the index at hand has no advisories; run it where pypi.org is reachable"
        )
    return int(bool(faults) or (strict and bool(unknown)))


def audit() -> list[dict]:
    """One record per pinned package: its known faults, or why it was skipped."""
    if not PYTHON.exists():
        venv.create(HOME, with_pip=True)
    if subprocess.run([PYTHON, "-c", "import pip_audit"], capture_output=True).returncode:
        install = [PYTHON, "-m", "pip", "install", *QUIET, "pip-audit"]
        subprocess.run(install, check=True, capture_output=True, timeout=300)
    command = [PYTHON, "-m", "pip_audit", "--requirement", ROOT / "constraints.txt"]
    command += ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    return json.loads(done.stdout)["dependencies"]


if __name__ == "__main__":
    sys.exit(main())
