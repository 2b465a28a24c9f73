"""Fuzzing: FOCALCAL_FUZZ_CASES inputs in all (a few thousand by default), counted and reported.

The cases of a plain test run are always the same; with the variable set they are new ones.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

CASES = int(os.environ.get("FOCALCAL_FUZZ_CASES", "3000"))
COUNTS: Counter[str] = Counter()


def cases(share: float) -> settings:
    """Settings that give a test its share of all cases."""
    return settings(
        max_examples=max(10, round(CASES * share)),
        derandomize="FOCALCAL_FUZZ_CASES" not in os.environ,
        database=None,
        deadline=None,
        # A found case is printed as it is: shrinking one can take longer than all the others.
        phases=[Phase.explicit, Phase.generate],
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


def count(name: str, outcome: str) -> None:
    """Remember that a case ran, and whether it was accepted or refused."""
    COUNTS[f"{name}: {outcome}"] += 1


def pytest_terminal_summary(terminalreporter) -> None:
    if COUNTS:
        terminalreporter.section(f"fuzz: {sum(COUNTS.values()):,} cases")
        for name, n in sorted(COUNTS.items()):
            terminalreporter.line(f"{n:>8,}  {name}")


def pytest_sessionfinish() -> None:
    """Workers that run side by side add their counts to one file."""
    log = os.environ.get("FOCALCAL_FUZZ_LOG")
    if log and COUNTS:
        with Path(log).open("a", encoding="utf-8") as file:
            file.writelines(f"{n} {name}\n" for name, n in sorted(COUNTS.items()))


@st.composite
def damage(draw, good: bytes, most: int = 4) -> bytes:
    """A valid file with a few bytes changed, cut, doubled or inserted; or no such file at all."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=200))
    data = bytearray(good)
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(["byte", "cut", "insert", "double", "zeros", "head"]))
        size = draw(st.integers(1, 40))
        if kind == "byte" and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del data[at : at + size]
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
        elif kind == "double":
            data[at:at] = data[at : at + size]
        elif kind == "zeros":
            data[at : at + size] = bytes(min(size, len(data) - at))
        else:
            del data[at:]
    return bytes(data)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([10**400, -1, 2**63, 1e308, "inf", "nan", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)


@st.composite
def mutated(draw, document, most: int = 2):
    """A JSON document with a few fields replaced, removed, added or renamed, at any depth."""
    import copy

    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, most))):
        node, steps = document, draw(st.integers(0, 4))
        while steps and isinstance(node, dict | list) and node:
            keys = list(node) if isinstance(node, dict) else range(len(node))
            key = draw(st.sampled_from(keys))
            child = node[key]
            if steps == 1 or not isinstance(child, dict | list) or not child:
                break
            node, steps = child, steps - 1
        else:
            return draw(JSON)
        kind = draw(st.sampled_from(["replace", "remove", "add"]))
        if kind == "replace":
            node[key] = draw(JSON)
        elif kind == "remove":
            del node[key]
        elif isinstance(node, dict):
            node[draw(st.text(max_size=6))] = draw(JSON)
        else:
            node.append(draw(JSON))
    return document
