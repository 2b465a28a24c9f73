"""Fitted calibrators as torch modules: the same array code, its constants held as buffers."""

from __future__ import annotations

import copy
import importlib.util
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from focalcal._arrays import as_float, full_precision
from focalcal.calibrators.base import Calibrator
from focalcal.calibrators.to_onnx import OPSET, attach_to_onnx
from focalcal.errors import InputError, needing

with needing("torch", "torch", "a calibrator as a torch module"):
    import torch
    from torch import Tensor, nn


class CalibratorModule(nn.Module):
    """A fitted calibrator as a module without parameters: logits in, probabilities out.

    Fitted numbers are buffers: they move with `.to(device)` and appear in `state_dict()`. Gradients
    flow to the logits, except through the steps of `histogram`, `bbq` and `venn-abers`: in mode
    "ovr" their probabilities have no gradient, in mode "top-label" only the proportions of the
    other classes have one. Half-precision logits are widened to float32. Casting the module to
    half precision leaves the buffers in float32, because rounding would merge bin edges.

    >>> import torch
    >>> from focalcal.calibrators import PlattScaling
    >>> s = torch.linspace(-2, 2, 100)
    >>> calibrator = PlattScaling().fit(s, (s + torch.sin(9 * s) > 0).int())
    >>> calibrator.to_torch()(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """

    def __init__(self, calibrator: Calibrator) -> None:
        super().__init__()
        check_is_fitted(calibrator, "n_classes_")
        self._calibrator = copy.deepcopy(calibrator)
        parts: dict[str, Calibrator] = {}
        for name, value in calibrator._fitted().items():
            if isinstance(value, Calibrator):
                parts[name] = value
            elif name == "labels_":
                parts = {f"label{j}": c for j, c in enumerate(value)}
            elif isinstance(value, dict):
                parts |= {k: c for k, c in value.items() if isinstance(c, Calibrator)}
            elif isinstance(value, (float, int, np.ndarray, np.number)):
                # torch.tensor copies: a buffer must not share memory with the calibrator.
                self.register_buffer(name, torch.tensor(value, dtype=torch.float64))
        self.parts = nn.ModuleDict({name: CalibratorModule(c) for name, c in parts.items()})
        self.register_load_state_dict_post_hook(_read_scalars)

    def forward(self, logits: Tensor) -> Tensor:
        """Probabilities (N, K) of logits (N, K), or (N, 2) of binary logits (N,) or (N, 1)."""
        return torch.exp(self.log_proba(logits))

    def log_proba(self, logits: Tensor) -> Tensor:
        """Log-probabilities, for losses and for products of many probabilities."""
        logits = self._calibrator._shaped(as_float(logits))
        with full_precision(logits):
            return self._bound()._calibrated(self._calibrator._finite(logits))

    def _bound(self) -> Calibrator:
        """The calibrator with its arrays replaced by this module's buffers.

        Scalars stay Python numbers: calibrators may branch on them, which a tensor would forbid
        under `torch.export`.
        """
        bound = object.__new__(type(self._calibrator))
        bound.__dict__.update(self._calibrator.__dict__)
        parts = {name: part._bound() for name, part in self.parts.items()}
        arrays = {name: buffer for name, buffer in self._buffers.items() if buffer.ndim > 0}
        for name, value in self._calibrator._fitted().items():
            if name == "labels_":
                value = list(parts.values())
            elif isinstance(value, dict):
                value = {k: parts.get(k, v) for k, v in value.items()}
            setattr(bound, name, arrays.get(name, parts.get(name, value)))
        return bound

    def _apply(self, fn: Any, recurse: bool = True) -> CalibratorModule:
        exact = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, buffer in self._buffers.items():
            if buffer.dtype not in (torch.float32, torch.float64):
                self._buffers[name] = exact[name].to(buffer.device, torch.float32)
        return self

    def extra_repr(self) -> str:
        return repr(self._calibrator)


def _read_scalars(module: CalibratorModule, _: Any) -> None:
    """A named function, because modules with a lambda cannot be pickled."""
    for name, buffer in module._buffers.items():
        if buffer.ndim == 0:
            setattr(module._calibrator, name, float(buffer))


class CalibratedModule(nn.Module):
    """A network whose forward pass returns calibrated probabilities instead of logits.

    `model` returns logits (N, K), (N,) or (N, 1), images of logits (N, K, d1..dk), or an output
    with `logits`, as Hugging Face models do. It is not copied. It is put in eval mode, because a
    calibrator is fitted to logits without dropout; `train()` leaves that mode. Calibration adds
    buffers and no parameters.

    model: the network; calibrator: a fitted calibrator; log: return log-probabilities; class_axis:
    the axis of the classes if the logits have more than two, −1 for tokens (N, T, K).

    >>> import torch
    >>> from focalcal.calibrators import PlattScaling
    >>> net = torch.nn.Linear(4, 2)
    >>> x = torch.randn(100, 4)
    >>> y = net(x).add(torch.randn(100, 2)).argmax(dim=1)
    >>> calibrator = PlattScaling().fit(net(x).detach(), y)
    >>> CalibratedModule(net, calibrator)(x).sum(dim=1).allclose(torch.ones(100))
    True
    """

    def __init__(
        self, model: nn.Module, calibrator: Calibrator, *, log: bool = False, class_axis: int = 1
    ) -> None:
        super().__init__()
        self.model = model
        self.calibrator = calibrator.to_torch()
        self.log = log
        self.class_axis = class_axis
        self.eval()

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Probabilities in the shape of the logits, or log-probabilities if made with `log=True`.

        Binary logits (N,) and those with one class on the class axis become two columns.
        """
        logits = logits_of(self.model(*inputs, **options))
        function = self.calibrator.log_proba if self.log else self.calibrator
        if logits.ndim < 3:
            return function(logits)
        last = logits.movedim(self.class_axis, -1)
        rows = function(last.reshape(-1, last.shape[-1]))
        return rows.reshape(*last.shape[:-1], rows.shape[1]).movedim(-1, self.class_axis)

    def to_onnx(self, path: str | Path, example: Any, **options: Any) -> None:
        """Write network and calibrator as one ONNX graph; `options` go to `torch.onnx.export`.

        `example` is one input batch or a tuple of inputs, whose first axis is the batch, of dynamic
        size. The network is put in eval mode. For a network that is already an ONNX file use
        `focalcal.calibrators.attach_to_onnx`.
        """
        self.eval()
        inputs = example if isinstance(example, tuple) else (example,)
        with tempfile.TemporaryDirectory() as folder:
            model_path = str(Path(folder) / "model.onnx")
            _export_network(self.model, inputs, model_path, options)
            attach_to_onnx(model_path, self.calibrator._calibrator, path, log=self.log)


def logits_of(output: Any) -> Tensor:
    """A tensor as it is; the logits of a Hugging Face output; the first of a tuple."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, dict) and "logits" in output:
        return output["logits"]
    if hasattr(output, "logits"):
        return output.logits
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
        return output[0]
    raise InputError(
        "expected a model that returns logits, an output with logits or a tuple that begins with "
        f"them, got {type(output).__name__}"
    )


def _export_network(model: nn.Module, inputs: tuple[Any, ...], path: str, options: Any) -> None:
    """Export with torch's current exporter if onnxscript is installed, else with the legacy one."""
    if importlib.util.find_spec("onnxscript") is not None:
        settings = {"dynamic_shapes": tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs)}
    else:
        names = [f"input{i}" for i in range(len(inputs))]
        settings = {
            "dynamo": False,
            "opset_version": OPSET,
            "input_names": names,
            "output_names": ["logits"],
            "dynamic_axes": {name: {0: "N"} for name in [*names, "logits"]},
        }
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        torch.onnx.export(model, inputs, path, **{**settings, **options})
