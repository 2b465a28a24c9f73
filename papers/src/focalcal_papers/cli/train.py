"""`focalcal train`: train a model from a recipe or from options; several at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focalcal.cli import terminal
from focalcal.errors import InputError
from focalcal_papers.cli import Data, Device, Json

if TYPE_CHECKING:
    from focalcal_papers.training import TrainConfig

SETTINGS = (
    *("dataset", "model", "loss", "epochs", "batch_size", "lr", "weight_decay", "reduction"),
    *("clip_norm", "precision", "seed"),
)
"""Settings of a recipe that have an option of their own."""


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: focalcal train fashion-mnist-mlp --data FOLDER --loss fl-3")(train)


def train(
    recipes: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RECIPE]...", help="TOML files, or names of recipes.", show_default=False
        ),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Data set, e.g. cifar10.")] = None,
    model: Annotated[str | None, typer.Option(help="Network, e.g. resnet18.")] = None,
    loss: Annotated[str | None, typer.Option(help="Loss, e.g. flsd-53.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Length; the schedule scales.")] = None,
    batch_size: Annotated[int | None, typer.Option()] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    weight_decay: Annotated[float | None, typer.Option()] = None,
    reduction: Annotated[str | None, typer.Option(help="Loss: mean or sum.")] = None,
    clip_norm: Annotated[
        float | None, typer.Option(help="Largest gradient norm; 0: no clipping.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="float32 or bf16.")] = None,
    seed: Annotated[int | None, typer.Option()] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting of a recipe, in TOML."),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=A,B", help="A run for each value, e.g. loss=ce,fl-3."),
    ] = None,
    data: Data = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; with several recipes or --vary their parent.")
    ] = None,
    device: Device = "auto",
    parallel: Annotated[int, typer.Option(help="Number of runs side by side.")] = 1,
    mps: Annotated[
        bool, typer.Option("--mps", help="Let parallel runs share the GPU (NVIDIA MPS).")
    ] = False,
    stop_after: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Then save and pause; run again to continue."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Train a model, or continue an interrupted run."""
    given = dict(locals())
    from focalcal_papers.training.loop import train as train_one
    from focalcal_papers.training.parallel import summary, train_many

    changes = {name: given[name] for name in SETTINGS if given[name] is not None}
    changes |= dict(_parse_setting(text) for text in settings or [])
    configs = _varied(_configs(recipes or [], changes), vary or [])
    where = {"data_dir": data, "device": device, "stop_after": stop_after}
    folders = [(out or Path("runs")) / name for name in configs]
    if len(configs) > 1:
        many = list(configs.values())
        states = train_many(many, folders=folders, at_once=parallel, mps=mps, **where)
    else:
        (config,) = configs.values()
        with terminal.progress(f"{config.model} {config.dataset} {config.loss}") as progress:
            place = folders[0] if vary else out or folders[0]
            result = train_one(config, run_dir=place, progress=progress, **where)
        states = [summary(result.folder)]
    _print(states, json_output)
    if any(state["state"] == "failed" for state in states):
        raise typer.Exit(1)


def _parse_setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE with a TOML value; a bare word is a string; `table.name` sets inside a table."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InputError(f"expected --set NAME=VALUE, got {text!r}")
    return name.strip(), _value(value)


def _value(text: str) -> Any:
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _configs(recipes: list[Path], changes: dict[str, Any]) -> dict[str, TrainConfig]:
    """A config per run name: each recipe with the options on top, or the options alone."""
    from focalcal_papers.training.config import TrainConfig

    if not recipes:
        if "dataset" not in changes or "model" not in changes:
            raise InputError("expected a RECIPE.toml, or --dataset and --model; got neither")
        config = _merged({}, changes)
        return {f"{config.dataset}-{config.model}-{config.loss}-{config.seed}": config}
    paths = [path if path.is_file() else _named(path) for path in recipes]
    configs = {path.stem: _merged(TrainConfig.load(path).to_dict(), changes) for path in paths}
    if len(configs) < len(recipes):
        raise InputError("expected recipes with different names: each names its run folder")
    return configs


def _merged(settings: dict[str, Any], changes: dict[str, Any]) -> TrainConfig:
    """The config of these settings with the changes; those inside tables come last."""
    from focalcal_papers.training.config import TrainConfig

    settings = settings | {name: value for name, value in changes.items() if "." not in name}
    for name, value in changes.items():
        table, dot, key = name.partition(".")
        if dot:
            if not isinstance(settings.get(table, {}), dict):
                raise InputError(f"expected a table before the dot in {name!r}, got {table!r}")
            settings[table] = {**settings.get(table, {}), key: value}
    return TrainConfig.from_dict(settings)


def _named(path: Path) -> Path:
    """The recipe of this package with that name; other paths are unchanged."""
    from focalcal_papers.recipes import FOLDER

    names = sorted(file.stem for file in FOLDER.glob("*.toml"))
    if str(path) in names:
        return FOLDER / f"{path}.toml"
    if path.suffix:
        return path  # reading it raises the error
    raise InputError(f"expected a TOML file or a recipe of {', '.join(names)}; got {path}")


def _varied(configs: dict[str, TrainConfig], vary: list[str]) -> dict[str, TrainConfig]:
    """Each config with each value of each setting to vary; the values extend the run's name."""
    for text in vary:
        name, equals, values = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"expected --vary NAME=A,B, got {text!r}")
        listed = _value(f"[{values}]")  # TOML, or words between commas
        choices = listed if isinstance(listed, list) else [_value(v) for v in values.split(",")]
        if len({str(value) for value in choices}) < max(1, len(choices)):
            raise InputError(f"expected different values, at least one, in --vary {text}")
        configs = {
            f"{run}-{value}": _merged(config.to_dict(), {name.strip(): value})
            for run, config in configs.items()
            for value in choices
        }
    return configs


def _print(states: list[dict[str, Any]], as_json: bool) -> None:
    rows = []
    for state in states:
        test = state.get("test") or {}
        numbers = [
            "" if test.get(name) is None else f"{scale * test[name]:.{digits}f}"
            for name, scale, digits in (("error", 100, 2), ("nll", 1, 4), ("ece", 100, 2))
        ]
        epoch = f"{state.get('epoch', 0)}/{state.get('epochs', '?')}"
        rows.append(
            (state["run"], state["state"], epoch, f"{state.get('seconds', 0):.1f}", *numbers)
        )
    header = ("run", "state", "epoch", "seconds", "test error %", "test NLL", "test ECE %")
    record = states[0] if len(states) == 1 else states
    terminal.result(as_json, record, terminal.table(header, rows))
    for state in states:
        if state.get("message"):
            typer.echo(f"{state['run']}: {state['message']}", err=True)
