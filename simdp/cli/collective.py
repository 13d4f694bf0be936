"""``collective``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from simdp.cli.common import add_pictures, check_folder, earlier_files, show, write_text
from simdp.cli.completion import clusters


def collective(
    name: Annotated[str, typer.Argument(metavar="COLLECTIVE", help="For example all_reduce.")],
    cluster: Annotated[
        Path,
        typer.Option(help="A scenario, for its cluster, or a machine.", autocompletion=clusters),
    ],
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            help="ring, or {kind: ring, slices: 4}; may be repeated [NCCL's for its devices]."
        ),
    ] = None,
    world_size: Annotated[
        str | None, typer.Option(help="8, or 2,4,8, or 2:64 by doubling [the cluster's].")
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(help="FIRST:LAST[:FACTOR], or one size [1KiB:1GiB:2].")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="RULE", help="mod 8 or div 8: process groups, all at once."),
    ] = None,
    root: Annotated[int, typer.Option(help="For broadcast, reduce, scatter and gather.")] = 0,
    dtype: Annotated[str | None, typer.Option(help="As in nccl-tests [float].")] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="LOG", help="Measured times: a log of nccl-tests.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for files.")] = Path("runs/collective"),
    as_json: Annotated[bool, typer.Option("--json", help="Print collective.json, only.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
    no_plots: Annotated[bool, typer.Option("--no-plots", help="Draw no pictures.")] = False,
) -> int:
    """Time a collective: a table in the format of nccl-tests, and plots in a folder."""
    from simdp.files import parse_yaml, whole_files
    from simdp.studies.collective import Request, answer

    check_folder(out, "collective.json", *([] if against is None else [against]))
    algorithms = [parse_yaml(text, f"--algorithm {text}") for text in algorithm or []]
    study = answer(
        Request(name, cluster, algorithms, world_size, sizes, root, dtype, against, split)
    )
    with whole_files(out, earlier_files(out)) as add:
        add("collective.json", lambda stream: write_text(stream, study.to_json()))
        if not no_plots:
            add_pictures(add, study)
    if as_json:
        sys.stdout.write(study.to_json())
    elif not quiet:
        from simdp.reports import collective_table

        show(collective_table.tables(study))
        show(f"files in {out}")
    return 0
