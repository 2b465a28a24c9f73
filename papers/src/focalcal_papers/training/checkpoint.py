"""Checkpoints: tensors in safetensors, the rest in JSON; a complete one exists at any time.

A checkpoint `step-00000351` is two files. The tensors are written first, the JSON last and
atomically, so the JSON file exists only if the checkpoint is complete. Older checkpoints are
removed only after that: a full disk or a kill at any time loses nothing already written.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from focalcal.errors import FileFormatError
from focalcal.files import atomic_path, write_text

_FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint: `tensors` by flat name and the JSON `state`."""

    path: Path
    tensors: dict[str, Tensor]
    state: dict[str, Any]

    def section(self, prefix: str) -> dict[str, Tensor]:
        """The tensors named `prefix.*`, without the prefix."""
        start = prefix + "."
        return {k.removeprefix(start): v for k, v in self.tensors.items() if k.startswith(start)}


def save_checkpoint(
    folder: Path, kind: str, step: int, tensors: dict[str, Tensor], state: dict[str, Any]
) -> Path:
    """Write checkpoint `kind`-`step` and remove older ones of that kind; returns the JSON path."""
    stem = f"{kind}-{step:08d}"
    path = folder / f"{stem}.json"
    # Clones: safetensors refuses tensors that share memory or have gaps.
    plain = {
        k: v.detach().to("cpu").clone(memory_format=torch.contiguous_format)
        for k, v in tensors.items()
    }
    blob = safetensors.torch.save(plain)
    with atomic_path(folder / f"{stem}.safetensors") as temporary:
        temporary.write_bytes(blob)
    record = {"format": _FORMAT, "step": step, "crc32": zlib.crc32(blob), "state": state}
    write_text(path, json.dumps(record, indent=1, allow_nan=False))
    # The JSON first; a kill in between leaves only tensors, which the next call removes.
    for other in sorted(folder.glob(f"{kind}-*")):
        if other.stem != stem:
            other.unlink(missing_ok=True)
    return path


def latest_checkpoint(folder: Path, kind: str) -> Path | None:
    """The newest complete checkpoint of a kind, or None."""
    return max(folder.glob(f"{kind}-*.json"), default=None)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; FileFormatError if it is damaged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        expected, state = record["crc32"], record["state"]
        version = record["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileFormatError(
            f"expected a training checkpoint in {path}: {error}; remove it to use an older one"
        ) from error
    if version != _FORMAT:
        raise FileFormatError(
            f"expected checkpoint format {_FORMAT} in {path}, got {version}; "
            "resume with the version of focalcal that wrote it"
        )
    tensor_file = path.with_suffix(".safetensors")
    blob = tensor_file.read_bytes() if tensor_file.is_file() else b""
    if zlib.crc32(blob) != expected:
        raise FileFormatError(
            f"expected the tensors of {path.name} in {tensor_file}, "
            "got a missing or damaged file; remove both to start again"
        )
    return Checkpoint(path, safetensors.torch.load(blob), state)


def pack_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], list[dict]]:
    """An optimizer's state as flat tensors `index.name`, and its hyper-parameters as JSON."""
    packed = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    for index, entry in packed["state"].items():
        for name, value in entry.items():
            if value is not None:
                tensors[f"{index}.{name}"] = torch.as_tensor(value)
    groups = [
        {k: v.item() if isinstance(v, Tensor) else v for k, v in group.items() if k != "params"}
        for group in packed["param_groups"]
    ]
    return tensors, groups


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore packed tensors; hyper-parameters come from the config that built `optimizer`."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    rates = [group["lr"] for group in optimizer.param_groups]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for group, rate in zip(optimizer.param_groups, rates):
        group["lr"] = rate  # load_state_dict copies a tensor rate; a captured step reads this one
    for parameter, entry in optimizer.state.items():
        for name, value in entry.items():
            # Fused optimizers need state with the parameter's memory layout.
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                entry[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
