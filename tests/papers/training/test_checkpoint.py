from __future__ import annotations

import json

import pytest
import torch

from focalcal.errors import FileFormatError
from focalcal_papers.training.checkpoint import (
    latest_checkpoint,
    load_checkpoint,
    pack_optimizer,
    save_checkpoint,
    unpack_optimizer,
)


def tensors():
    shared = torch.arange(6.0)
    return {
        "model.a": shared[:3],
        "model.b": shared,  # overlaps a
        "model.c": torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        "random.cpu": torch.get_rng_state(),
        "n": torch.tensor(3),
    }


def test_what_was_saved_comes_back_and_the_older_one_goes(tmp_path):
    save_checkpoint(tmp_path, "step", 1, tensors(), {"epoch": 0})
    save_checkpoint(tmp_path, "best", 1, {"x": torch.zeros(1)}, {})
    given = tensors()
    path = save_checkpoint(tmp_path, "step", 12, given, {"epoch": 1, "groups": [{"lr": 0.1}]})
    assert latest_checkpoint(tmp_path, "step") == path
    loaded = load_checkpoint(path)
    assert loaded.state == {"epoch": 1, "groups": [{"lr": 0.1}]}
    assert loaded.tensors.keys() == given.keys()
    assert all(torch.equal(loaded.tensors[k], given[k]) for k in given)
    assert loaded.section("model").keys() == {"a", "b", "c"}
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == [
        *("best-00000001.json", "best-00000001.safetensors"),
        *("step-00000012.json", "step-00000012.safetensors"),
    ]


def test_a_full_disk_keeps_the_earlier_checkpoint(tmp_path):
    """A limit on file size fails a write as a full disk does, inside the operating system."""
    import resource
    import signal

    path = save_checkpoint(tmp_path, "step", 1, {"x": torch.ones(4)}, {})
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        with pytest.raises(OSError):
            save_checkpoint(tmp_path, "step", 2, {"x": torch.ones(100_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert latest_checkpoint(tmp_path, "step") == path
    assert torch.equal(load_checkpoint(path).tensors["x"], torch.ones(4))
    assert len(list(tmp_path.iterdir())) == 2


def test_tensors_without_their_json_are_no_checkpoint(tmp_path):
    path = save_checkpoint(tmp_path, "step", 1, {"x": torch.ones(4)}, {})
    # What a kill between the two files leaves behind.
    (tmp_path / "step-00000002.safetensors").write_bytes(b"half")
    assert latest_checkpoint(tmp_path, "step") == path
    save_checkpoint(tmp_path, "step", 3, {"x": torch.ones(4)}, {})
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["step-00000003.json", "step-00000003.safetensors"]


@pytest.mark.parametrize("damage", ["cut", "absent", "json", "version"])
def test_damage_is_named(tmp_path, damage):
    path = save_checkpoint(tmp_path, "step", 1, {"x": torch.ones(4)}, {})
    blob = path.with_suffix(".safetensors")
    if damage == "cut":
        blob.write_bytes(blob.read_bytes()[:-1])
    elif damage == "absent":
        blob.unlink()
    elif damage == "json":
        path.write_text("{")
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    message = {"json": "expected a training checkpoint", "version": "expected checkpoint format"}
    with pytest.raises(FileFormatError, match=message.get(damage, "missing or damaged")):
        load_checkpoint(path)


def test_nothing_but_json_and_tensors_is_written(tmp_path):
    path = save_checkpoint(tmp_path, "step", 1, {"x": torch.ones(4)}, {"a": None})
    assert json.loads(path.read_text())["state"] == {"a": None}
    head = path.with_suffix(".safetensors").read_bytes()
    size = int.from_bytes(head[:8], "little")
    assert json.loads(head[8 : 8 + size])["x"]["shape"] == [4]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("kind", ["SGD", "Adam", "Adagrad"])
def test_an_optimizer_continues_as_if_never_stopped(kind):
    def make(values):
        parameter = torch.nn.Parameter(values.clone())
        extra = {"momentum": 0.9} if kind == "SGD" else {}
        return parameter, getattr(torch.optim, kind)([parameter], 0.1, **extra)

    def steps(parameter, optimizer, n):
        for _ in range(n):
            optimizer.zero_grad()
            (parameter**4).sum().backward()
            optimizer.step()

    whole, optimizer = make(torch.tensor([1.0, -2.0]))
    steps(whole, optimizer, 5)
    half, optimizer = make(torch.tensor([1.0, -2.0]))
    steps(half, optimizer, 2)
    packed, groups = pack_optimizer(optimizer)
    json.dumps(groups)
    resumed, optimizer = make(half.detach())
    unpack_optimizer(optimizer, packed)
    steps(resumed, optimizer, 3)
    assert torch.equal(resumed, whole)


def test_restored_momentum_lies_in_memory_as_its_parameter():
    weight = torch.rand(4, 3, 3, 3).contiguous(memory_format=torch.channels_last)
    parameter = torch.nn.Parameter(weight)
    optimizer = torch.optim.SGD([parameter], 0.1, momentum=0.9)
    momentum = torch.rand(4, 3, 3, 3)
    unpack_optimizer(optimizer, {"0.momentum_buffer": momentum})
    restored = optimizer.state[parameter]["momentum_buffer"]
    assert torch.equal(restored, momentum)
    assert restored.stride() == parameter.stride()
