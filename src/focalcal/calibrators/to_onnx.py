"""Fitted calibrators as ONNX files, alone or attached to a network in an ONNX file.

The calibrator's own array code runs once on `OnnxArray`s, which record it. The model is compared
with NumPy before it is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from focalcal._arrays import log_softmax
from focalcal.calibrators.base import Calibrator
from focalcal.errors import FileFormatError, FocalcalError, InputError, needing
from focalcal.files import atomic_path

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET = 18
"""Supported by ONNX Runtime 1.14 (February 2023) and later."""
IR_VERSION = 8
TOLERANCE = {"float64": 1e-6, "float32": 1e-5}
"""Largest difference in probability from NumPy float64, by the precision of the arithmetic."""
PREFIX = "focalcal/"
"""Prefix of the tensors of an attached calibrator."""
DTYPES = ("float16", "float32", "float64")

_EXAMPLES = 3  # rows of the traced batch; the check uses another number


def export(
    calibrator: Calibrator, path: Any, *, dtype: str = "float32", compute: str = "float64"
) -> None:
    """Write a fitted calibrator as an ONNX file, verified against NumPy."""
    model = build(calibrator, dtype=dtype, compute=compute)
    verify(model, calibrator, dtype=dtype, compute=compute)
    with atomic_path(path) as temporary:
        temporary.write_bytes(model.SerializeToString())


def build(
    calibrator: Calibrator,
    *,
    dtype: str = "float32",
    compute: str = "float64",
    log: bool = False,
    columns: int | None = None,
    opset: int = OPSET,
) -> ModelProto:
    """The ONNX model of a fitted calibrator; `columns` is 1 or 0 for binary logits (N, 1), (N,)."""
    check_is_fitted(calibrator, "n_classes_")
    onnx = _import_onnx()
    from focalcal.calibrators.onnx_graph import Graph, OnnxArray

    if dtype not in DTYPES:
        raise InputError(
            f"expected dtype in {DTYPES}, got {dtype!r}; use float32, and in a network cast the "
            "logits in the last step: logits.float()"
        )
    if compute not in TOLERANCE:
        raise InputError(f"expected compute 'float32' or 'float64', got {compute!r}")
    graph = Graph(compute)
    k = calibrator.n_classes_ if columns is None else columns
    # The values of the example batch do not matter: any finite logits give the same graph.
    example = _example_logits(_EXAMPLES, max(k, 1)).astype(dtype)
    x = OnnxArray(example if k else example[:, 0], "logits", graph)
    with np.errstate(all="ignore"):  # unselected branches of where()
        x = np.astype(x, compute)
        y = calibrator._calibrated(calibrator._finite(x) if columns is None else x)
        graph.widest = np.dtype(dtype)
        y = np.astype(y if log else np.exp(y), dtype)
    graph.nodes.append(onnx.helper.make_node("Identity", [graph.name(y)], ["probabilities"]))
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    value = onnx.helper.make_tensor_value_info
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            "focalcal",
            [value("logits", element, ["N", k] if k else ["N"])],
            [value("probabilities", element, ["N", y.shape[1]])],
            graph.initializers,
        ),
        opset_imports=[onnx.helper.make_opsetid("", opset)],
        ir_version=IR_VERSION,
        producer_name="focalcal",
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def attach_to_onnx(
    model_path: Any,
    calibrator: Calibrator,
    out_path: Any,
    *,
    output: str | None = None,
    log: bool = False,
) -> None:
    """Append a fitted calibrator to a network saved as ONNX; the result is one ONNX file.

    model_path: the network, an ONNX file; calibrator: a fitted calibrator; out_path: the file to
    write; output: the name of the network's logits, needed only if it has several outputs, of
    which the others are kept; log: write `log_probabilities` instead of `probabilities`. The new
    output is `calibrated_probabilities` if the network already has a tensor of that name.
    """
    onnx = _import_onnx()
    try:
        network = onnx.load(str(model_path))
    except Exception as error:  # protobuf raises its own DecodeError
        raise FileFormatError(f"expected an ONNX file at {model_path}, got: {error}") from error
    logits = _logits_output(network, output)
    opset = max([o.version for o in network.opset_import if o.domain in ("", "ai.onnx")] or [OPSET])
    if opset < OPSET:
        network, opset = _converted(network, opset), OPSET
    tensor = logits.type.tensor_type
    rank = len(tensor.shape.dim)
    width = tensor.shape.dim[1].dim_value if rank == 2 else 0
    k, multilabel = calibrator.n_classes_, calibrator.task == "multilabel"
    columns = 0 if rank == 1 else 1 if width == 1 and not multilabel else None
    if rank not in (1, 2) or (width not in (0, k) if columns is None else k != 2 or multilabel):
        raise InputError(
            f"expected a network with logits for {k} {'labels' if multilabel else 'classes'}, "
            f"as fitted, got {logits.name} of rank {rank} and width {width}"
        )
    names = _names(network)
    if any(name.startswith(PREFIX) for name in names):
        raise InputError("expected a network without a calibrator, got one with one attached")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    verify(build(calibrator, dtype=dtype), calibrator, dtype=dtype, compute="float64")
    part = build(calibrator, dtype=dtype, log=log, columns=columns, opset=opset)
    part = onnx.compose.add_prefix(part, PREFIX)
    final = "log_probabilities" if log else "probabilities"
    final = f"calibrated_{final}" if final in names else final
    for node in part.graph.node:
        node.output[:] = [final if n == f"{PREFIX}probabilities" else n for n in node.output]
    part.graph.output[0].name = final
    network.ir_version = part.ir_version = max(network.ir_version, IR_VERSION)
    merged = onnx.compose.merge_models(
        network,
        part,
        io_map=[(logits.name, f"{PREFIX}logits")],
        outputs=[o.name for o in network.graph.output if o.name != logits.name] + [final],
    )
    opsets = {o.domain: o.version for o in merged.opset_import}  # merging lists them twice
    del merged.opset_import[:]
    merged.opset_import.extend(map(onnx.helper.make_opsetid, opsets, opsets.values()))
    onnx.checker.check_model(merged)
    with atomic_path(out_path) as temporary:
        temporary.write_bytes(merged.SerializeToString())


def verify(model: ModelProto, calibrator: Calibrator, *, dtype: str, compute: str) -> None:
    """Run the model on another batch and compare with NumPy; FocalcalError if they differ."""
    logits = _example_logits(_EXAMPLES + 4, calibrator.n_classes_).astype(dtype)
    got = np.asarray(_run(model, logits), dtype=np.float64)
    with np.errstate(all="ignore"):
        expected = np.exp(calibrator._calibrated(logits.astype(np.float64)))
    worst = np.inf
    if got.shape == expected.shape:
        rows = np.max(np.abs(got - expected), axis=1)
        # In float32 a few samples may fall on the other side of a jump, hence the median.
        worst = np.max(rows) if compute == "float64" else np.median(rows)
    tolerance = max(TOLERANCE[compute], float(np.finfo(dtype).eps))
    if not worst <= tolerance:
        raise FocalcalError(
            f"expected the ONNX file of {type(calibrator).__name__} to agree with NumPy to "
            f"{tolerance:.2g}, got a difference of {worst:.2g}; nothing was written, "
            "please report this"
        )


def _example_logits(n: int, k: int) -> np.ndarray:
    return log_softmax(np.random.default_rng(0).normal(scale=3.0, size=(n, k)))


def _run(model: ModelProto, logits: np.ndarray) -> np.ndarray:
    """Run with onnxruntime if installed, else with onnx's own slow evaluator."""
    try:
        import onnxruntime
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        with np.errstate(all="ignore"):
            return ReferenceEvaluator(model).run(None, {"logits": logits})[0]
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"logits": logits})[0]


def _logits_output(network: ModelProto, name: str | None) -> Any:
    outputs = list(network.graph.output)
    found = outputs if name is None else [o for o in outputs if o.name == name]
    if len(found) != 1:
        names = [o.name for o in outputs]
        raise InputError(f"expected output= to name the logits among {names}, got {name!r}")
    return found[0]


def _names(network: ModelProto) -> set[str]:
    """The names of all tensors of a network."""
    graph = network.graph
    made = {name for node in graph.node for name in node.output}
    return made | {x.name for x in [*graph.input, *graph.initializer]}


def _converted(network: ModelProto, opset: int) -> ModelProto:
    try:
        return _import_onnx().version_converter.convert_version(network, OPSET)
    except Exception as error:  # the converter raises RuntimeError, IndexError and others
        raise FileFormatError(
            f"expected a network of opset {OPSET} or later, got {opset}, and it could "
            f"not be converted ({error}); export it again with a newer opset"
        ) from error


def _import_onnx() -> Any:
    with needing("onnx", "onnx", "writing an ONNX file"):
        import onnx
        import onnx.compose
        import onnx.version_converter
    return onnx
