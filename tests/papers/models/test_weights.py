"""Weights files: both formats, prefixes, and files that are refused."""

import os
import pickle

import pytest
import torch
from safetensors.torch import save_file

from focalcal.errors import FileFormatError, InputError
from focalcal_papers.models import load_weights, make_model, read_state_dict


@pytest.fixture
def model():
    torch.manual_seed(0)
    return make_model("resnet18", 10, width=1 / 16)


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"state_dict": s, "epoch": 3}])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_what_is_saved_is_loaded(tmp_path, model, wrap, prefix):
    state = {prefix + k: v for k, v in model.state_dict().items()}
    torch.save(wrap(state), tmp_path / "model.th")
    fresh = load_weights(make_model("resnet18", 10, width=1 / 16), tmp_path / "model.th")
    assert all(torch.equal(v, fresh.state_dict()[k]) for k, v in model.state_dict().items())


def test_safetensors(tmp_path, model):
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    state = read_state_dict(tmp_path / "model.safetensors")
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(FileFormatError, match="expected a safetensors file"):
        read_state_dict(tmp_path / "model.safetensors")


def test_files_without_the_batch_counter(tmp_path, model):
    state = {k: v for k, v in model.state_dict().items() if "num_batches" not in k}
    torch.save(state, tmp_path / "old.th")
    load_weights(make_model("resnet18", 10, width=1 / 16), tmp_path / "old.th")


def test_other_networks_are_refused(tmp_path, model):
    torch.save(model.state_dict(), tmp_path / "model.th")
    with pytest.raises(InputError, match=r"2 of another shape \['linear.bias', 'linear.weight'\]"):
        load_weights(make_model("resnet18", 100, width=1 / 16), tmp_path / "model.th")
    with pytest.raises(InputError, match=r"missing \['layers.0.bias'.* unknown"):
        load_weights(make_model("mlp", 10), tmp_path / "model.th")


class Hostile:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_hostile_files_run_nothing(tmp_path):
    victim = tmp_path / "victim"
    torch.save({"state_dict": Hostile(f"touch {victim}")}, tmp_path / "bad.th")
    (tmp_path / "raw.th").write_bytes(pickle.dumps(Hostile(f"touch {victim}"), protocol=2))
    for name in ("bad.th", "raw.th"):
        with pytest.raises(FileFormatError, match="expected a weights file of tensors only"):
            read_state_dict(tmp_path / name)
    assert not victim.exists()


def test_missing_and_damaged(tmp_path, model):
    with pytest.raises(FileFormatError, match="found none at"):
        read_state_dict(tmp_path / "absent.th")
    path = tmp_path / "model.th"
    torch.save(model.state_dict(), path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(FileFormatError, match="could not read"):
        read_state_dict(path)
    path.write_bytes(b"")
    with pytest.raises(FileFormatError, match="could not read"):
        read_state_dict(path)
    torch.save([1, 2], path)
    with pytest.raises(FileFormatError, match=r"dictionary of tensors in .*, got list"):
        read_state_dict(path)
    torch.save({"a": 1}, path)
    with pytest.raises(FileFormatError, match="dictionary of tensors"):
        read_state_dict(path)
