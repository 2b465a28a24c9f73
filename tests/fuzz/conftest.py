"""Fuzzing: FOCALCAL_FUZZ_CASES inputs in all (a few thousand by default), counted and reported.

The cases of a plain test run are always the same; with the variable set they are new ones.
hypothesis draws one seed per case and a `Random` makes the input from it: drawing every byte
of a file or every number of an array would take ten times as long as the case itself.
"""

from __future__ import annotations

import math
import os
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

CASES = int(os.environ.get("FOCALCAL_FUZZ_CASES", "3000"))
COUNTS: Counter[str] = Counter()


def run_cases(share: float, case: Callable[[Random], None]) -> None:
    """Run `case` on its share of all cases; a failure prints the seed that repeats it."""

    @settings(
        max_examples=max(10, round(CASES * share)),
        derandomize="FOCALCAL_FUZZ_CASES" not in os.environ,
        database=None,
        deadline=None,
        # A found case is printed as it is: a smaller seed is no simpler than a larger one.
        phases=[Phase.explicit, Phase.generate],
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**64 - 1))
    def run(seed: int) -> None:
        case(Random(seed))

    run()


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


def damage(random: Random, good: bytes, most: int = 4) -> bytes:
    """A valid file with a few bytes changed, cut, doubled or inserted; or no such file at all."""
    if random.random() < 0.05:
        return random.randbytes(random.randrange(200))
    data = bytearray(good)
    for _ in range(random.randint(1, most)):
        at, size = random.randrange(max(len(data), 1)), random.randint(1, 40)
        kind = random.choice(["byte", "byte", "bit", "cut", "insert", "double", "zeros", "head"])
        if kind == "byte" and data:
            data[at] = random.randrange(256)
        elif kind == "bit" and data:
            data[at] ^= 1 << random.randrange(8)
        elif kind == "cut":
            del data[at : at + size]
        elif kind == "insert":
            data[at:at] = random.randbytes(random.randint(1, 8))
        elif kind == "double":
            data[at:at] = data[at : at + size]
        elif kind == "zeros":
            data[at : at + size] = bytes(min(size, max(len(data) - at, 0)))
        elif kind == "head":
            del data[at:]
    return bytes(data)


ODD = [0.0, -0.0, 1.0, -1.0, 0.5, 1e4, -1e4, 1e-300, 1e30, -1e30, 1e300, -1.7e308, 5e-324]
ODD += [math.nan, math.inf, -math.inf]


def number(random: Random) -> float:
    """A float: of everyday size, odd, or any 64 bits."""
    kind = random.randrange(4)
    if kind < 2:
        return random.gauss(0, 10 ** random.uniform(-3, 2))
    return random.choice(ODD) if kind == 2 else struct.unpack("d", random.randbytes(8))[0]


def text(random: Random, most: int = 6) -> str:
    letters = "ab09_-. /\\\"'<>{},\n\x00é∞😀\ud800"
    return "".join(random.choice(letters) for _ in range(random.randrange(most + 1)))


def value(random: Random, depth: int = 2) -> Any:
    """Something JSON can spell (and json.dumps writes NaN and lone surrogates too)."""
    kind = random.randrange(12 if depth else 9)
    if kind < 3:
        return number(random)
    if kind < 5:
        return random.choice([random.randint(-3, 40), random.getrandbits(70), 10**400, 2**63, -1])
    if kind < 9:
        return random.choice([None, True, False, text(random), "inf", "nan", ""])
    inner = [value(random, depth - 1) for _ in range(random.randrange(4))]
    return inner if random.random() < 0.5 else {text(random): child for child in inner}


def mutated(random: Random, document: Any, most: int = 2) -> Any:
    """A JSON document with a few places changed at any depth; the given one stays as it is.

    Most numbers become other numbers: a document that may still be valid.
    """
    for _ in range(random.randint(1, most)):
        document = _changed(random, document)
    return document


def _changed(random: Random, node: Any) -> Any:
    if not isinstance(node, dict | list) or not node:
        if isinstance(node, bool) or not isinstance(node, int | float) or random.random() < 0.3:
            return value(random)
        if random.random() < 0.5 and abs(node) < 1e300:
            return type(node)(node * random.uniform(-0.5, 2))
        return random.choice([number(random), random.randint(-2, 9)])
    keys = list(node) if isinstance(node, dict) else range(len(node))
    key = random.choice(keys)
    new = dict(node) if isinstance(node, dict) else list(node)
    kind = random.randrange(20)
    if kind < 16:
        new[key] = _changed(random, node[key])
    elif kind < 17:
        del new[key]
    elif kind < 18:
        return value(random)
    elif isinstance(new, dict):
        new[text(random)] = value(random)
    else:
        new.insert(random.randrange(len(new) + 1), value(random))
    return new
