"""Reading published weights without running code from the file."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from focalcal.errors import FileFormatError, InputError
from focalcal_papers.data.files import PathLike

Model = TypeVar("Model", bound=nn.Module)


def read_state_dict(path: PathLike) -> dict[str, Tensor]:
    """The tensors of a checkpoint: a state dict, or one under the key "state_dict".

    Files are read with `weights_only=True` (nothing in them is executed) or as safetensors;
    the prefix "module." that DataParallel leaves is removed.
    """
    path = Path(path)
    if not path.is_file():
        raise FileFormatError(f"expected a weights file, found none at {path}; check the path")
    try:
        if path.suffix == ".safetensors":
            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise FileFormatError(f"expected a safetensors file at {path}: {error}") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as error:
        raise FileFormatError(
            f"expected a weights file of tensors only, could not read {path} "
            f"({str(error).splitlines()[0] if str(error) else type(error).__name__}); "
            "save it again with torch.save(model.state_dict(), path)"
        ) from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise FileFormatError(
            f"expected a dictionary of tensors in {path}, got {type(state).__name__}; "
            "save it again with torch.save(model.state_dict(), path)"
        )
    return {name.removeprefix("module."): tensor for name, tensor in state.items()}


def load_weights(model: Model, path: PathLike) -> Model:
    """Fill `model` with the weights of a file and return it; every name and shape must match.

    The published CIFAR ResNet-20/32/44/56 load into `make_model("resnet20", 10)` and so on; they
    expect images normalised with `focalcal_papers.data.IMAGENET_MEAN` and `IMAGENET_STD`.
    """
    state = read_state_dict(path)
    own = model.state_dict()
    # Files older than PyTorch 0.4 lack this counter; evaluation does not use it.
    for name, value in own.items():
        if name.endswith("num_batches_tracked"):
            state.setdefault(name, value)
    missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    shapes = [n for n in own.keys() & state.keys() if own[n].shape != state[n].shape]
    if missing or unknown or shapes:
        raise InputError(
            f"expected the weights of {type(model).__name__}, got others in {path}: "
            f"{len(missing)} missing {missing[:3]}, {len(unknown)} unknown {unknown[:3]}, "
            f"{len(shapes)} of another shape {sorted(shapes)[:3]}; "
            "build the model with the name and number of classes it was trained with"
        )
    model.load_state_dict(state)
    return model
