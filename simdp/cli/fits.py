"""``fits``: which methods train a model on so many devices."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from simdp.cli.common import say
from simdp.cli.completion import DEVICES, MACHINES, MODELS


def fits(
    model: Annotated[
        str,
        typer.Argument(
            help="A name of `list models`, or a mapping as in YAML.", autocompletion=MODELS
        ),
    ],
    gpus: Annotated[int, typer.Option(help="Number of ranks.")],
    device: Annotated[
        str | None,
        typer.Option(
            help="See `list devices`; links as they are usual for it.", autocompletion=DEVICES
        ),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.yaml",
            help="See `list machines`; in place of a device.",
            autocompletion=MACHINES,
        ),
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a sample [the model's].")
    ] = None,
    microbatch: Annotated[
        int | None, typer.Option(min=1, help="Samples per rank and micro-step [what fits].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, only.")] = False,
) -> int:
    """Say which methods fit, how full devices get, and what a step takes, without a scenario."""
    from simdp.files import parse_yaml
    from simdp.studies import fits as study

    asked = study.Asked(
        parse_yaml(model, "MODEL"), gpus, machine, device, sequence_length, microbatch
    )
    found = study.fitting(asked)
    if as_json:
        sys.stdout.write(found.to_json())
    else:
        from simdp.reports import fitting_table

        say(fitting_table.table(found))
    return 0
