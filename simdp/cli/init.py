"""``init``: a first scenario, from flags or from answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from simdp.cli.common import parsed_model, warn, write_text
from simdp.cli.completion import MODELS, STRATEGIES
from simdp.cli.fits import (
    Device,
    HostMemory,
    MachineOption,
    MethodOption,
    Microbatch,
    NodeSize,
    PrecisionOption,
    Recompute,
    SequenceLength,
    checked_size,
    whole_number,
)
from simdp.errors import ScenarioError

NEEDED = {"--machine": "dgx-h100", "--model": "bert-large", "--gpus": "32"}
"""Flags without which there is no scenario, and examples of them."""

BEST = "best"
"""In place of a strategy: what fits best."""


def init(
    machine: MachineOption = None,
    device: Device = None,
    node_size: NodeSize = None,
    model: Annotated[
        str | None, typer.Option(help="See `list models`; or a config.json.", autocompletion=MODELS)
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="The largest number of ranks.")] = None,
    strategy: Annotated[
        str | None,
        typer.Option(help="See `list strategies` [the best fit].", autocompletion=STRATEGIES),
    ] = None,
    recompute: Recompute = None,
    method: MethodOption = None,
    host_memory: HostMemory = None,
    microbatch: Microbatch = None,
    sequence_length: SequenceLength = None,
    precision: PrecisionOption = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("scenario.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Write over a file.")] = False,
) -> int:
    """Write a commented scenario of your model on your cluster; prompts for missing options.

    Defaults are those of the best fitting row of `fits`.
    """
    from simdp.files import check_outputs, write_whole
    from simdp.studies.first_scenario import first_scenario
    from simdp.studies.methods import FitsRequest, known_machine

    check_outputs(out)
    if out.exists() and not force:
        raise ScenarioError(f"{out}: is there already; add --force, or --out another file.")
    missing = _missing({"--machine": machine or device, "--model": model, "--gpus": gpus})
    if machine is None and device is None:
        machine = _ask("Machine (list machines)", NEEDED["--machine"], known_machine)
    if model is None:
        model = _ask("Model (list models)", NEEDED["--model"], _value("--model"))
    if gpus is None:
        gpus = _ask_size(machine, device, node_size)
    if len(missing) == len(NEEDED) and strategy is None:
        strategy = _ask_strategy()
    request = FitsRequest(
        model=_parsed("--model", model),
        gpus=gpus,
        machine=machine,
        device=device,
        sequence_length=sequence_length,
        microbatch=microbatch,
        node_size=node_size,
        precision=_parsed("--precision", precision),
        strategy=_parsed("--strategy", strategy),
        recompute=recompute,
        method=method,
        host_memory=checked_size("--host-memory", host_memory),
    )
    text = first_scenario(request, out)
    write_whole(out, lambda stream: write_text(stream, text))
    print(f"wrote {out}; next: python -m simdp run {out}")
    return 0


def _missing(given: dict[str, object]) -> list[str]:
    """Options to prompt for, at a terminal."""
    missing = [option for option, value in given.items() if value is None]
    if missing and not sys.stdin.isatty():
        example = " ".join(f"{option} {NEEDED[option]}" for option in missing)
        raise ScenarioError(
            f"{', '.join(missing)}: must be given where nobody can be asked; add {example}."
        )
    return missing


def _parsed(option: str, text: str | None) -> Any:
    """A value as YAML has it."""
    from simdp.files import parse_yaml

    parse = parsed_model if option == "--model" else parse_yaml
    return parse(text, option) if text else None


def _ask_strategy() -> str | None:
    check = _value("--strategy")
    text = _ask("Strategy (list strategies)", BEST, lambda text: text == BEST or check(text))
    return None if text == BEST else text


def _ask_size(machine: str | None, device: str | None, node_size: int | None) -> int:
    from simdp.studies.methods import place_of

    place = place_of(machine, device, node_size)
    check = place.check_size
    return int(_ask("GPUs", str(place.usual_size), lambda text: check(whole_number(text))))


def _ask(question: str, usual: str, check: Callable[[str], object]) -> str:
    """Ask until the answer is one; an empty one is the usual."""
    while True:
        text = str(typer.prompt(question, default=usual))
        try:
            check(text)
        except ScenarioError as error:
            for line in error.problems:
                warn(line)
        else:
            return text


def _value(option: str) -> Callable[[str], object]:
    """Check a value as YAML does."""
    from simdp.studies.methods import known_value

    return lambda text: known_value(option, _parsed(option, text))
