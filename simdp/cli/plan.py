"""``plan``: searches for machine, number of nodes and settings."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simdp.cli.common import (
    Overrides,
    ScenarioPath,
    Scheduler,
    Shared,
    Workers,
    add_page,
    check_folder,
    earlier_files,
    folder_of,
    listed_values,
    overrides_of,
    reproduction,
    show,
    write_text,
)
from simdp.errors import ScenarioError, unknown_name

if TYPE_CHECKING:
    from simdp.results.plan import PlanResult
    from simdp.studies.plan import PlanRequest

RANGE = re.compile(r"\s*[^\s,\[\]{}'\"]+:[^\s,\[\]{}'\"]+\s*")


Deadline = Annotated[
    str | None, typer.Option(metavar='"3 days"', help="Time until the target is reached, at most.")
]
Budget = Annotated[
    str | None, typer.Option(metavar='"10000 USD"', help="Cost until then, at most.")
]
Energy = Annotated[
    str | None, typer.Option(metavar='"500 kWh"', help="Energy until then, at most.")
]
Sure = Annotated[
    str | None,
    typer.Option(metavar="90%", help="Probability to meet deadline, budget, energy [in the mean]."),
]
Memory = Annotated[
    str | None,
    typer.Option(metavar='"60 GB"', help="Peak memory of a rank, at most [the device's]."),
]


Goal = Annotated[
    str, typer.Option("--for", metavar="cheapest|fastest|greenest", help="Quantity to minimise.")
]
Choose = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=V1,V2",
        help="Search space, as nodes=1:64 (by doubling) or strategy=ddp,fsdp.",
    ),
]


def plan(
    scenario: ScenarioPath,
    goal: Goal = "cheapest",
    deadline: Deadline = None,
    budget: Budget = None,
    energy: Energy = None,
    max_memory: Memory = None,
    sure: Sure = None,
    choose: Choose = None,
    global_batch: Annotated[
        int | None, typer.Option(min=1, help="Samples of a step [the scenario's].")
    ] = None,
    settings: Overrides = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    go_on: Annotated[bool, typer.Option("--continue", help="Reuse finished points.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for files [runs/NAME-plan].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print plan.json, only.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
) -> int:
    """Find the cheapest, fastest or greenest way to train, with reasons and alternatives."""
    from simdp.studies.executor import executor_for
    from simdp.studies.plan import plan as study
    from simdp.studies.plan import ready
    from simdp.studies.store import Store

    Shared(workers, scheduler, go_on, None).check()
    limits = {"deadline": deadline, "budget": budget, "energy": energy, "memory": max_memory}
    request = _asked(goal, limits, choose or [], global_batch, sure)
    overrides = overrides_of(settings)
    folder = folder_of(out, scenario, overrides, request.choices, "plan")
    check_folder(folder, "plan.json", scenario)
    kept = (out.parent if out else Path("runs")) / "points"
    with (
        executor_for(workers or 1, scheduler) as at_work,
        Store(kept, go_on) as store,
        _line(quiet) as progress,
    ):
        plans = study(
            scenario, request, overrides, executor=at_work, store=store, progress=progress
        )
    given = {**limits, "sure": sure, "global-batch": global_batch}
    command = reproduction("plan", scenario, settings, {"--for": goal, **_options(given)})
    command += [f"--choose={text}" for text in choose or ()]
    _write(plans, folder, ready(scenario, plans, overrides, folder), command)
    if as_json:
        sys.stdout.write(plans.to_json())
    elif not quiet:
        from simdp.reports import plan_table

        show(plan_table.table(plans))
        show(f"files in {folder}: a scenario of each")
    return 0


def _options(given: Mapping[str, object]) -> dict[str, str]:
    """Options that were given, by their names, as text."""
    names = {"memory": "max-memory"}
    return {f"--{names.get(k, k)}": str(value) for k, value in given.items() if value is not None}


def _write(
    plans: PlanResult,
    folder: Path,
    scenarios: Mapping[str, Mapping[str, object]],
    command: list[str],
) -> None:
    from simdp.files import format_yaml, whole_files

    with whole_files(folder, earlier_files(folder, "option-[0-9]*.yaml")) as add:
        add("plan.json", lambda stream: write_text(stream, plans.to_json()))
        add_page(add, plans, command=command)
        for name, raw in scenarios.items():
            add(name, partial(write_text, text=format_yaml(dict(raw))))


def _asked(
    goal: str,
    limits: Mapping[str, str | None],
    choose: list[str],
    global_batch: int | None,
    sure: str | None,
) -> PlanRequest:
    from simdp.results.plan import GOALS
    from simdp.studies.plan.request import PlanRequest, parse_limit, parse_sure

    if goal not in GOALS:
        raise ScenarioError(f"--for: {unknown_name('goal', goal, list(GOALS))}")
    parsed = {name: parse_limit(name, text) for name, text in limits.items() if text is not None}
    known = None if sure is None else parse_sure(sure)
    start = PlanRequest(goal, choices=_choices(choose), global_batch=global_batch, sure=known)
    return replace(start, **parsed)  # type: ignore[arg-type]


def _choices(choose: list[str]) -> dict[str, list[Any]]:
    """Read ``KEY=V1,V2``, or a range that doubles."""
    from simdp.studies.plan.request import doubled

    def ranged(key: str, values: str) -> list[Any] | None:
        return doubled(key, values.strip()) if RANGE.fullmatch(values) else None

    return listed_values("--choose", choose, "nodes=1,2,4", ranged)


@contextmanager
def _line(silent: bool) -> Iterator[Callable[[str], None] | None]:
    """Print progress on standard error; None without a terminal."""
    if silent or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update
