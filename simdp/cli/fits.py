"""``fits``: lists methods that train a model on a number of devices."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from simdp.cli.common import parsed_model, show
from simdp.cli.completion import DEVICES, MACHINES, MODELS, PRECISIONS, STRATEGIES
from simdp.errors import ScenarioError

LEAST = "?"
"""In place of a number of ranks: the least that fits."""

Device = Annotated[
    str | None,
    typer.Option(
        help="See `list devices`; links as they are usual for it.", autocompletion=DEVICES
    ),
]
MachineOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE.yaml",
        help="See `list machines`; in place of a device.",
        autocompletion=MACHINES,
    ),
]
NodeSize = Annotated[
    int | None, typer.Option(min=1, max=2**20, help="GPUs of a node [the machine's].", metavar="N")
]
SequenceLength = Annotated[
    int | None, typer.Option(min=1, help="Tokens of a sample [the model's].")
]
Microbatch = Annotated[
    int | None, typer.Option(min=1, help="Samples per rank and micro-step [the largest that fits].")
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        help="full, amp or mixed as in a file, so float16; {kind: amp, dtype: bfloat16} [mixed in "
        "the devices' 16 bits].",
        autocompletion=PRECISIONS,
    ),
]
Recompute = Annotated[str | None, typer.Option(help="none, selective or blocks [the fastest].")]
HostMemory = Annotated[
    str | None,
    typer.Option(metavar='"500 GB"', help="Host memory of a node, for offloading [the machine's]."),
]
MethodOption = Annotated[str | None, typer.Option("--method", help="full, offload, lora or qlora.")]


def fits(
    model: Annotated[
        str,
        typer.Argument(
            help="A name of `list models`, a config.json, or a mapping as in YAML.",
            autocompletion=MODELS,
        ),
    ],
    gpus: Annotated[
        str, typer.Option(metavar="N|?", help="Number of ranks; ? for the least that fits.")
    ],
    device: Device = None,
    machine: MachineOption = None,
    node_size: NodeSize = None,
    sequence_length: SequenceLength = None,
    microbatch: Microbatch = None,
    precision: PrecisionOption = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="Only this one of `list strategies` [several].", autocompletion=STRATEGIES
        ),
    ] = None,
    recompute: Recompute = None,
    method: MethodOption = None,
    host_memory: HostMemory = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, only.")] = False,
) -> int:
    """List the methods that fit, their memory and step time, without a scenario."""
    from simdp.files import parse_yaml
    from simdp.studies.fits import fitting
    from simdp.studies.methods import FitsRequest

    request = FitsRequest(
        parsed_model(model, "MODEL"),
        None if gpus == LEAST else whole_number(gpus),
        machine,
        device,
        sequence_length,
        microbatch,
        node_size,
        parse_yaml(precision, "--precision") if precision else None,
        parse_yaml(strategy, "--strategy") if strategy else None,
        recompute,
        method,
        checked_size("--host-memory", host_memory),
    )
    fits = fitting(request)
    if as_json:
        sys.stdout.write(fits.to_json())
    else:
        from simdp.reports import sweep_table

        show(sweep_table.fitting_table(fits))
    return 0


def checked_size(option: str, text: str | None) -> str | None:
    """Return the text of a size above 0; else a ScenarioError."""
    from simdp.studies.plan.request import parse_limit

    if text is not None:
        parse_limit(option.removeprefix("--"), text)
    return text


def whole_number(text: str) -> int:
    """Read a number of ranks.

    Raises
    ------
    ScenarioError
        If it is none.
    """
    if not text.isascii() or not text.isdecimal():
        raise ScenarioError(f"--gpus {text}: is not a whole number; write for example 32.")
    return int(text)
