"""Every registered method as torch module and as ONNX file: all equal to NumPy."""

from __future__ import annotations

import builtins
import copy
import pickle
import re
import types
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from focalcal.calibrators import METHODS, CalibratedModule, PlattScaling, attach_to_onnx, to_onnx
from focalcal.calibrators.onnx_graph import Graph, OnnxArray
from focalcal.errors import (
    FileFormatError,
    FitWarning,
    FocalcalError,
    InputError,
    MissingExtraError,
)

VARIANTS = [
    (name, mode)
    for name, kind in METHODS.items()
    for mode in (("ovr", "top-label") if "mode" in kind().get_params() else (None,))
]


@pytest.fixture(scope="module")
def fitted(calibrated_data):
    """Fitted calibrators by (name, mode, classes, task), each fitted once."""
    made = {}

    def fit(name, mode=None, k=4, task="auto"):
        key = (name, mode, k, task)
        if key not in made:
            settings = {"task": task} if mode is None else {"mode": mode, "task": task}
            z, y = calibrated_data(400, k, seed=3)
            labels = np.stack([y == j for j in range(k)], 1).astype(int) if task != "auto" else y
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FitWarning)
                made[key] = METHODS[name](**settings).fit(1.7 * z, labels)
        return made[key]

    return fit


@pytest.fixture(scope="module")
def logits():
    rng = np.random.default_rng(5)
    return np.concatenate([scale * rng.normal(size=(40, 4)) for scale in (0.1, 4, 60)])


def run(path, z):
    return onnxruntime.InferenceSession(str(path)).run(None, {"logits": z})[0]


@pytest.mark.parametrize(("name", "mode"), VARIANTS)
@pytest.mark.parametrize("k", [2, 4])
def test_onnx_equals_numpy(name, mode, k, fitted, logits, tmp_path):
    calibrator = fitted(name, mode, k)
    for dtype in ("float64", "float32"):
        z = logits[:, :k].astype(dtype)
        calibrator.to_onnx(tmp_path / "c.onnx", dtype=dtype)
        got = run(tmp_path / "c.onnx", z)
        assert got.dtype == dtype
        expected = calibrator.predict_proba(z.astype(np.float64))
        np.testing.assert_allclose(got, expected, atol=1e-6, rtol=0)
        assert run(tmp_path / "c.onnx", z[:1]).shape == (1, k)


@pytest.mark.parametrize(("name", "mode"), VARIANTS)
@pytest.mark.parametrize("k", [2, 4])
def test_torch_module_equals_numpy(name, mode, k, fitted, logits):
    calibrator = fitted(name, mode, k)
    module = calibrator.to_torch()
    z = logits[:, :k]
    got = module(torch.as_tensor(z)).numpy()
    np.testing.assert_allclose(got, calibrator.predict_proba(z), atol=1e-12, rtol=0)
    assert list(module.parameters()) == []
    narrow = copy.deepcopy(module).half()(torch.as_tensor(z).half())
    assert narrow.dtype == torch.float32
    assert torch.isfinite(narrow).all()


@pytest.mark.parametrize(("name", "mode"), VARIANTS)
def test_multi_label_exports(name, mode, fitted, logits, tmp_path):
    calibrator = fitted(name, mode, 4, "multilabel")
    expected = calibrator.predict_proba(logits)
    got = calibrator.to_torch()(torch.as_tensor(logits)).numpy()
    np.testing.assert_allclose(got, expected, atol=1e-12, rtol=0)
    calibrator.to_onnx(tmp_path / "c.onnx", dtype="float64")
    np.testing.assert_allclose(run(tmp_path / "c.onnx", logits), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", METHODS)
def test_state_dict_carries_the_whole_map(name, fitted, logits):
    source, other = fitted(name).to_torch(), fitted(name).to_torch()
    for buffer in other.buffers():
        buffer.fill_(1.0)  # forget the fit
    other.load_state_dict(other.state_dict())
    if list(other.buffers()) and name != "prior-correction":  # equal priors correct nothing
        assert not torch.allclose(other(torch.as_tensor(logits)), source(torch.as_tensor(logits)))
    other.load_state_dict(source.state_dict())
    torch.testing.assert_close(other(torch.as_tensor(logits)), source(torch.as_tensor(logits)))


# One of each kind of map: torch needs seconds to trace each.
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        v
        for v in VARIANTS
        if v in {("platt", "ovr"), ("spline", "ovr"), ("histogram", "top-label")}
        or v[0] in {"temperature", "focal-temperature", "focal"}
    ],
)
def test_torch_export_keeps_a_free_batch_size(name, mode, fitted, logits):
    module = fitted(name, mode).to_torch()
    z = torch.as_tensor(logits)
    batch = torch.export.Dim("batch", min=2, max=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations while tracing
        program = torch.export.export(module, (z[:7],), dynamic_shapes={"logits": {0: batch}})
    torch.testing.assert_close(program.module()(z), module(z))


def test_float32_arithmetic_throughout(fitted, logits, tmp_path):
    for name, mode in VARIANTS:
        fitted(name, mode).to_onnx(tmp_path / "c.onnx", compute="float32")
        model = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "c.onnx"))
        kinds = {v.type.tensor_type.elem_type for v in model.graph.value_info}
        assert TensorProto.DOUBLE not in kinds, (name, mode)
        got = run(tmp_path / "c.onnx", logits.astype(np.float32))
        expected = fitted(name, mode).predict_proba(logits.astype(np.float32).astype(np.float64))
        assert np.median(np.abs(got - expected)) < 1e-6, (name, mode)


def test_a_graph_that_disagrees_is_not_written(fitted, tmp_path, monkeypatch):
    monkeypatch.setattr(to_onnx, "_run", lambda model, logits: np.full((7, 4), 0.25))
    with pytest.raises(FocalcalError, match="agree with NumPy"):
        fitted("platt").to_onnx(tmp_path / "c.onnx")
    assert not list(tmp_path.iterdir())


def test_without_onnxruntime_the_reference_evaluator_checks(fitted, tmp_path, monkeypatch):
    real = builtins.__import__

    def no_runtime(name, *args, **kwargs):
        if name == "onnxruntime":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_runtime)
    fitted("spline").to_onnx(tmp_path / "c.onnx")
    assert (tmp_path / "c.onnx").exists()


def test_missing_onnx_is_said(fitted, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"focalcal\[onnx\]"):
        fitted("platt").to_onnx(tmp_path / "c.onnx")


def test_unknown_dtype_is_refused(fitted, tmp_path):
    with pytest.raises(InputError, match="expected dtype in"):
        fitted("platt").to_onnx(tmp_path / "c.onnx", dtype="int8")
    with pytest.raises(InputError, match="expected compute 'float32' or 'float64'"):
        fitted("platt").to_onnx(tmp_path / "c.onnx", compute="float16")


def test_a_bfloat16_network_is_told_to_cast_its_logits(fitted, tmp_path):
    types = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, ["N", 4]) for name in "xz"]
    node = helper.make_node("Identity", ["x"], ["z"])
    graph = helper.make_graph([node], "network", types[:1], types[1:])
    onnx.save(helper.make_model(graph), tmp_path / "network.onnx")
    with pytest.raises(InputError, match=r"got 'bfloat16'; .* last step: logits\.float\(\)"):
        attach_to_onnx(tmp_path / "network.onnx", fitted("temperature"), tmp_path / "o")


@pytest.mark.parametrize("name", ["histogram", "bbq", "venn-abers"])
def test_steps_have_no_gradient(name, fitted, logits):
    z = torch.tensor(logits[:, :3], requires_grad=True)
    assert not fitted(name, "ovr", 3).to_torch()(z).requires_grad
    assert fitted(name, "top-label", 3).to_torch()(z).requires_grad


def test_half_precision_networks_are_served(fitted, logits, tmp_path):
    fitted("spline").to_onnx(tmp_path / "c.onnx", dtype="float16")
    z = logits[:80].astype(np.float16)
    expected = fitted("spline").predict_proba(z.astype(np.float64))
    np.testing.assert_allclose(run(tmp_path / "c.onnx", z), expected, atol=1e-3)


def test_log1p_and_expm1_keep_all_digits(tmp_path):
    # Independent: NumPy's own log1p and expm1 over 600 orders of magnitude.
    tiny = np.logspace(-300, 2, 500)
    x = np.concatenate([-tiny[tiny < 1], [0.0], tiny, [-1 + 1e-9]])
    for function in (np.log1p, np.expm1):
        graph = Graph()
        with np.errstate(all="ignore"):
            traced = function(OnnxArray(x, "logits", graph))
        model = helper.make_model(
            helper.make_graph(
                graph.nodes,
                "g",
                [helper.make_tensor_value_info("logits", TensorProto.DOUBLE, ["N"])],
                [helper.make_tensor_value_info(traced.name, TensorProto.DOUBLE, ["N"])],
                graph.initializers,
            ),
            opset_imports=[helper.make_opsetid("", to_onnx.OPSET)],
            ir_version=to_onnx.IR_VERSION,
        )
        onnx.save(model, tmp_path / "f.onnx")
        np.testing.assert_allclose(run(tmp_path / "f.onnx", x), function(x), rtol=1e-15)


def test_branches_on_traced_values_are_errors():
    x = OnnxArray(np.ones(3), "x", Graph())
    with pytest.raises(FocalcalError, match="Python branch on a traced value"):
        bool(x[0] > 0)
    with pytest.raises(FocalcalError, match="expected integers, slices or None"):
        x[x > 0]
    with pytest.raises(FocalcalError, match="expected a function with an ONNX rule, got sort"):
        np.sort(x)
    with pytest.raises(FocalcalError, match="expected a function with an ONNX rule, got tan"):
        np.tan(x)


def network(path, k, opset=to_onnx.OPSET, extra=False):
    """z = 2x, an ONNX network of one node, with a second output if asked for."""
    width = [k] if k else []
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Mul", ["x", "two"], ["scores"])]
    outputs = [value("scores", TensorProto.FLOAT, ["N", *width])]
    if extra:
        nodes.append(helper.make_node("Neg", ["x"], ["other"]))
        outputs.append(value("other", TensorProto.FLOAT, ["N", *width]))
    graph = helper.make_graph(
        nodes,
        "net",
        [value("x", TensorProto.FLOAT, ["N", *width])],
        outputs,
        [helper.make_tensor("two", TensorProto.FLOAT, [], [2.0])],
    )
    ir = 8 if opset < 20 else 10
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)
    onnx.save(model, path)


@pytest.mark.parametrize(("name", "opset"), [("platt", 13), ("spline", 18), ("temperature", 21)])
def test_attach_to_a_network(name, opset, fitted, logits, tmp_path):
    network(tmp_path / "net.onnx", 4, opset)
    attach_to_onnx(tmp_path / "net.onnx", fitted(name), tmp_path / "both.onnx")
    x = logits.astype(np.float32)
    session = onnxruntime.InferenceSession(str(tmp_path / "both.onnx"))
    got = session.run(["probabilities"], {"x": x})[0]
    expected = fitted(name).predict_proba(2 * x.astype(np.float64))
    np.testing.assert_allclose(got, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("width", [0, 1])
def test_attach_to_a_network_with_one_logit(width, fitted, logits, tmp_path):
    network(tmp_path / "net.onnx", width)
    attach_to_onnx(
        tmp_path / "net.onnx", fitted("platt", "ovr", 2), tmp_path / "both.onnx", log=True
    )
    x = logits[:, 0].astype(np.float32)
    session = onnxruntime.InferenceSession(str(tmp_path / "both.onnx"))
    got = session.run(["log_probabilities"], {"x": x if width == 0 else x[:, None]})[0]
    np.testing.assert_allclose(got, fitted("platt", "ovr", 2).predict_log_proba(2 * x), rtol=1e-5)


def test_attach_keeps_other_outputs_and_refuses_what_does_not_fit(fitted, tmp_path):
    network(tmp_path / "net.onnx", 4, extra=True)
    with pytest.raises(InputError, match="expected output= to name the logits"):
        attach_to_onnx(tmp_path / "net.onnx", fitted("platt"), tmp_path / "both.onnx")
    attach_to_onnx(tmp_path / "net.onnx", fitted("platt"), tmp_path / "both.onnx", output="scores")
    names = {o.name for o in onnx.load(tmp_path / "both.onnx").graph.output}
    assert names == {"other", "probabilities"}
    network(tmp_path / "net.onnx", 3)
    with pytest.raises(InputError, match="logits for 4 classes, as fitted"):
        attach_to_onnx(tmp_path / "net.onnx", fitted("platt"), tmp_path / "both.onnx")
    (tmp_path / "net.onnx").write_bytes(b"not a model")
    with pytest.raises(FileFormatError, match="expected an ONNX file"):
        attach_to_onnx(tmp_path / "net.onnx", fitted("platt"), tmp_path / "both.onnx")
    with pytest.raises(FileFormatError, match="expected an ONNX file"):
        attach_to_onnx(tmp_path / "none.onnx", fitted("platt"), tmp_path / "both.onnx")


def test_calibrated_module(fitted, logits):
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 4).double()
    module = CalibratedModule(net, fitted("platt"))
    x = torch.as_tensor(logits)
    expected = fitted("platt").predict_proba(net(x).detach())
    torch.testing.assert_close(module(x).detach(), expected)
    log_module = CalibratedModule(net, fitted("platt"), log=True)
    torch.testing.assert_close(log_module(x).exp(), module(x))
    assert {id(p) for p in module.parameters()} == {id(p) for p in net.parameters()}
    assert module.model is net


class Output(dict):
    """Fields by key and by name, as the outputs of transformers."""

    __getattr__ = dict.__getitem__


@pytest.mark.parametrize(
    "wrap",
    [lambda z: Output(logits=z), lambda z: (z, None), lambda z: types.SimpleNamespace(logits=z)],
)
def test_calibrated_module_reads_outputs_that_hold_logits(fitted, logits, wrap):
    class Model(torch.nn.Module):
        def forward(self, x, scale=1.0):
            return wrap(scale * x)

    module = CalibratedModule(Model(), fitted("spline"))
    x = torch.as_tensor(logits)
    expected = fitted("spline").predict_proba(2 * x)
    torch.testing.assert_close(module(x, scale=2.0), expected)


def test_calibrated_module_says_what_it_cannot_read(fitted):
    class Model(torch.nn.Module):
        def forward(self, x):
            return {"scores": x}

    with pytest.raises(InputError, match=r"expected a model that returns logits.*got dict"):
        CalibratedModule(Model(), fitted("spline"))(torch.zeros(2, 4))


@pytest.mark.parametrize("axis", [1, -1])
def test_calibrated_module_keeps_the_shape_of_images_and_tokens(fitted, logits, axis):
    rows = torch.as_tensor(logits[:60])
    images = rows.reshape(3, 4, 5, -1).movedim(-1, axis)
    module = CalibratedModule(torch.nn.Identity(), fitted("spline"), class_axis=axis)
    expected = fitted("spline").predict_proba(rows)
    torch.testing.assert_close(module(images).movedim(axis, -1).reshape(60, -1), expected)
    assert module(images).shape == images.shape


@pytest.mark.parametrize("name", ["temperature", "focal-temperature", "spline", "isotonic"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_calibrated_module_compiles_whole_and_without_warnings(fitted, logits, name):
    module = CalibratedModule(torch.nn.Linear(4, 4).double(), fitted(name))
    x = torch.as_tensor(logits[:20])
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), module(x))


def test_calibrated_module_predicts_without_dropout(fitted, logits, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # no onnxscript
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).train()
    module = CalibratedModule(net, fitted("platt"))
    x = torch.as_tensor(logits[:50], dtype=torch.float32)
    torch.testing.assert_close(module(x), module(x))
    assert not net.training
    module.train()
    assert (module(x) != module(x)).any()
    module.to_onnx(tmp_path / "both.onnx", torch.zeros(2, 4))
    assert "Dropout" not in {node.op_type for node in onnx.load(tmp_path / "both.onnx").graph.node}


def test_calibrated_module_to_onnx(fitted, logits, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # no onnxscript
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    module = CalibratedModule(net, fitted("spline"))
    module.to_onnx(tmp_path / "both.onnx", torch.zeros(2, 4))
    session = onnxruntime.InferenceSession(str(tmp_path / "both.onnx"))
    x = logits[:80].astype(np.float32)
    with torch.no_grad():
        expected = module(torch.as_tensor(x)).numpy()
    np.testing.assert_allclose(session.run(None, {"input0": x})[0], expected, atol=3e-6)


def test_calibrated_module_uses_the_present_exporter_with_onnxscript(
    fitted, logits, tmp_path, monkeypatch
):
    """A stand-in for the exporter, which the test machine may lack: what it is asked for."""
    asked = {}

    def export(model, inputs, path, **options):
        asked.update(options)
        network(path, 4)

    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(torch.onnx, "export", export)
    module = CalibratedModule(torch.nn.Identity(), fitted("platt"))
    module.to_onnx(tmp_path / "both.onnx", (torch.zeros(1, 4),), opset_version=20)
    assert asked["opset_version"] == 20
    assert len(asked["dynamic_shapes"]) == 1
    assert "dynamo" not in asked


def test_wrong_class_count_is_refused_by_the_module(fitted):
    for shape in ((2, 3), (4,)):
        message = re.escape(f"expected logits for 4 classes, as fitted, got shape {shape};")
        with pytest.raises(InputError, match=message):
            fitted("platt").to_torch()(torch.zeros(shape))


def test_unfitted_calibrators_do_not_export(tmp_path):
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        PlattScaling().to_torch()
    with pytest.raises(NotFittedError):
        PlattScaling().to_onnx(tmp_path / "c.onnx")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("name", "mode"), VARIANTS)
def test_modules_move_to_the_gpu(name, mode, fitted, logits):
    module = fitted(name, mode).to_torch().cuda()
    got = module(torch.as_tensor(logits).cuda())
    np.testing.assert_allclose(
        got.cpu().numpy(), fitted(name, mode).predict_proba(logits), atol=1e-9
    )


def test_a_network_that_cannot_be_converted_is_said(fitted, tmp_path, monkeypatch):
    import onnx.version_converter

    def fail(*_):
        raise RuntimeError("no adapter")

    monkeypatch.setattr(onnx.version_converter, "convert_version", fail)
    network(tmp_path / "net.onnx", 4, opset=11)
    with pytest.raises(FileFormatError, match="expected a network of opset 18 or later, got 11"):
        attach_to_onnx(tmp_path / "net.onnx", fitted("platt"), tmp_path / "both.onnx")


def test_missing_torch_is_said(monkeypatch):
    import importlib.util
    import sys

    from focalcal.calibrators import to_torch

    monkeypatch.setitem(sys.modules, "torch", None)
    spec = importlib.util.spec_from_file_location("without_torch", to_torch.__file__)
    with pytest.raises(MissingExtraError, match=r"focalcal\[torch\]"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_unknown_names_are_not_found():
    import focalcal.calibrators

    assert not hasattr(focalcal.calibrators, "NoSuchCalibrator")


@pytest.mark.parametrize("name", METHODS)
def test_classes_of_probability_zero_deploy_without_a_floor(name, fitted, logits, tmp_path):
    """Calibrators fitted without −∞: torch and ONNX returned NaN where NumPy did not."""
    calibrator, z = fitted(name), logits.copy()
    z[::3, 0] = -np.inf
    expected = calibrator.predict_proba(z)
    got = calibrator.to_torch()(torch.as_tensor(z)).numpy()
    np.testing.assert_allclose(got, expected, atol=1e-12, rtol=0)
    calibrator.to_onnx(tmp_path / "c.onnx", dtype="float64")
    np.testing.assert_allclose(run(tmp_path / "c.onnx", z), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["temperature", "platt", "auto"])
def test_the_floor_is_in_the_state_dict(name, calibrated_data):
    z, y = calibrated_data(400, 4)
    made = []
    for least in (0.02, 0.1):
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):
            made.append(METHODS[name]().fit(np.log(np.where(p < least, 0, p)), y))
    source, other = (c.to_torch() for c in made)
    x = torch.as_tensor(z)
    if name == "auto":  # may have chosen other parts, or parts of other sizes
        source, other = made[0].to_torch(), made[0].to_torch()
        for buffer in other.buffers():
            buffer.fill_(0.5)
    other.load_state_dict(source.state_dict())
    torch.testing.assert_close(other(x), source(x))
    assert any(key.endswith("floor_") for key in source.state_dict())


@pytest.mark.parametrize("name", ["matrix", "structured-matrix", "dirichlet", "focal-structured"])
def test_autocast_does_not_lower_the_precision(name, fitted, logits):
    """A product with a matrix was rounded to bfloat16: probabilities moved by 5e-3."""
    z = torch.as_tensor(logits, dtype=torch.float32)
    module = fitted(name).to_torch()
    expected = module(z)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(module(z), expected, rtol=0, atol=0)
        torch.testing.assert_close(fitted(name).predict_proba(z), expected)


@pytest.mark.parametrize("name", METHODS)
def test_modules_can_be_pickled(name, fitted, logits):
    module = CalibratedModule(torch.nn.Identity(), fitted(name))
    x = torch.as_tensor(logits)
    torch.testing.assert_close(pickle.loads(pickle.dumps(module))(x), module(x))


def test_binary_images_become_two_channels(fitted, logits):
    images = torch.as_tensor(logits[:60, :1]).reshape(3, 1, 4, 5)
    got = CalibratedModule(torch.nn.Identity(), fitted("platt", k=2))(images)
    expected = fitted("platt", k=2).predict_proba(images.reshape(-1))
    assert got.shape == (3, 2, 4, 5)
    torch.testing.assert_close(got.movedim(1, -1).reshape(-1, 2), expected)


@pytest.mark.parametrize(
    ("width", "k", "task", "message"),
    [
        (0, 4, "auto", "logits for 4 classes.*rank 1"),
        (1, 4, "auto", "logits for 4 classes.*width 1"),
        (1, 4, "multilabel", "logits for 4 labels.*width 1"),
        (0, 2, "multilabel", "logits for 2 labels.*rank 1"),
    ],
)
def test_attach_refuses_one_logit_for_several(width, k, task, message, fitted, tmp_path):
    network(tmp_path / "net.onnx", width)
    with pytest.raises(InputError, match=message):
        attach_to_onnx(
            tmp_path / "net.onnx", fitted("platt", "ovr", k, task), tmp_path / "both.onnx"
        )


def test_attach_to_a_network_that_has_the_name_of_the_output(fitted, logits, tmp_path):
    """Networks with outputs `logits` and `probabilities` could not be merged."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Softmax", ["x"], ["probabilities"]),
            helper.make_node("Neg", ["x"], ["z"]),
        ],
        "net",
        [value("x", TensorProto.FLOAT, ["N", 4])],
        [value(name, TensorProto.FLOAT, ["N", 4]) for name in ("probabilities", "z")],
    )
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "net.onnx")
    attach_to_onnx(tmp_path / "net.onnx", fitted("platt"), tmp_path / "both.onnx", output="z")
    session = onnxruntime.InferenceSession(str(tmp_path / "both.onnx"))
    names = ["probabilities", "calibrated_probabilities"]
    assert [o.name for o in session.get_outputs()] == names
    x = logits.astype(np.float32)
    got = session.run(names[1:], {"x": x})[0]
    expected = fitted("platt").predict_proba(-x.astype(np.float64))
    np.testing.assert_allclose(got, expected, atol=1e-6, rtol=0)
    assert len(onnx.load(tmp_path / "both.onnx").opset_import) == 1
    with pytest.raises(InputError, match="expected a network without a calibrator"):
        attach_to_onnx(
            tmp_path / "both.onnx", fitted("platt"), tmp_path / "twice.onnx", output=names[1]
        )


def test_attach_refuses_outputs_that_are_no_tensors(fitted, tmp_path):
    graph = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["x"], ["z"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_sequence_value_info("z", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "net.onnx")
    with pytest.raises(InputError, match="got z of rank 0"):
        attach_to_onnx(tmp_path / "net.onnx", fitted("platt"), tmp_path / "both.onnx")
