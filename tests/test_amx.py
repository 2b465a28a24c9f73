"""Where AMX is announced but forbidden, oneDNN is capped; elsewhere nothing changes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from focalcal import amx

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose CPU has these flags and whose bfloat16 product runs this code."""
    monkeypatch.setenv(amx.VARIABLE, "")  # so that monkeypatch puts the variable back
    monkeypatch.delenv(amx.VARIABLE)
    monkeypatch.setattr(amx, "_works", amx._works.__wrapped__)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "torch" or real(name))

    def make(flags, probe):
        (tmp_path / "cpuinfo").write_text(f"flags : fpu sse2 {flags}\n")
        monkeypatch.setattr(amx, "CPUINFO", tmp_path / "cpuinfo")
        monkeypatch.setattr(amx, "PROBE", probe)

    return make


def test_a_machine_that_kills_the_probe_is_capped(machine):
    machine("amx_bf16 amx_tile", DIES)
    assert amx.cap_if_forbidden().startswith("announced but not permitted")
    assert os.environ[amx.VARIABLE] == amx.CAP
    assert amx.cap_if_forbidden() == f"capped by {amx.VARIABLE}={amx.CAP}"


def test_a_machine_whose_probe_cannot_start_is_capped(machine, monkeypatch):
    machine("amx_tile", "pass")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "not permitted" in amx.cap_if_forbidden()


@pytest.mark.parametrize(
    ("flags", "probe", "says"),
    [("amx_tile", "pass", "usable"), ("avx512_bf16", DIES, "not announced by the CPU")],
)
def test_other_machines_are_left_alone(machine, flags, probe, says):
    machine(flags, probe)
    assert amx.cap_if_forbidden() == says
    assert amx.VARIABLE not in os.environ


def test_without_torch_nothing_is_probed(machine, monkeypatch):
    machine("amx_tile", DIES)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "not installed" in amx.cap_if_forbidden()
    assert amx.VARIABLE not in os.environ


def test_no_cpuinfo_means_no_announcement(machine, monkeypatch, tmp_path):
    machine("amx_tile", DIES)
    monkeypatch.setattr(amx, "CPUINFO", tmp_path / "absent")
    assert amx.cap_if_forbidden() == "not announced by the CPU"


def test_what_the_user_set_is_kept(machine, monkeypatch):
    machine("amx_tile", DIES)
    monkeypatch.setenv(amx.VARIABLE, "AVX2")
    assert amx.cap_if_forbidden() == f"capped by {amx.VARIABLE}=AVX2"


def test_the_real_probe_passes_below_the_cap():
    pytest.importorskip("torch", reason="the probe is of torch")
    environment = {**os.environ, amx.VARIABLE: amx.CAP}
    done = subprocess.run([sys.executable, "-c", amx.PROBE], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_doctor_says_it(machine):
    from typer.testing import CliRunner

    from focalcal.cli import app

    machine("amx_tile", DIES)
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert "announced but not permitted" in json.loads(result.stdout)["amx"]
    assert "amx" in CliRunner().invoke(app, ["doctor"]).stdout
