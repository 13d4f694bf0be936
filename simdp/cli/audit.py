"""``audit``: training of a script or a scenario, held against one device."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from simdp.cli.commands import COMMANDS
from simdp.cli.common import CHECK_FAILED, overrides_of, show, terminal_width, warn
from simdp.cli.completion import CAUSES, SCENARIOS
from simdp.errors import ScenarioError, unknown_name
from simdp.files import check_outputs, read_text, write_whole

if TYPE_CHECKING:
    from simdp.results.audit import AuditReport

WIDEST = 100
"""Most columns of the table."""

Target = Annotated[
    str,
    typer.Argument(
        metavar="SCRIPT.py|SCENARIO",
        help="A torch script; or a YAML file, a saved result.json, or a name of `list scenarios`.",
        autocompletion=SCENARIOS,
    ),
]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="ARGUMENTS", help="Arguments of the script.")
]
Ranks = Annotated[
    str | None,
    typer.Option(
        metavar="1,2,4",
        help="Numbers of ranks that share a global batch; 4:2 of a script resumes on another "
        "number [1,2,4; of a scenario 1 and its own].",
    ),
]
Exact = Annotated[
    bool, typer.Option("--exact", help="Compute in float64, so that rounding hides nothing.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CAUSE", help="A cause that is intended; may be repeated.", autocompletion=CAUSES
    ),
]
BatchArg = Annotated[
    str | None,
    typer.Option(
        metavar='"--batch-size {per_rank}"',
        help="Script: argument that sets the samples of a rank, or {global_batch} of all.",
    ),
]
SaveArg = Annotated[
    str | None,
    typer.Option(
        metavar='"--save {checkpoint}"', help="Script: argument that writes a checkpoint."
    ),
]
ResumeArg = Annotated[
    str | None,
    typer.Option(metavar='"--resume {checkpoint}"', help="Script: argument that resumes from one."),
]
AtStep = Annotated[
    int | None, typer.Option(min=1, help="Script: step after which it stops and resumes.")
]
Module = Annotated[
    bool, typer.Option("--module", "-m", help="SCRIPT is a module, as of python -m.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Scenario: set a dotted key first."),
]
MaxSteps = Annotated[
    int | None,
    typer.Option(min=1, help="Optimizer steps to compare [24 of a script; of a scenario by size]."),
]
Html = Annotated[
    Path | None, typer.Option(metavar="FILE.html", help="Write an HTML page of the audit there.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, only.")]

command = typer.Typer(add_completion=False, rich_markup_mode=None)


class Audit(TyperCommand):
    """Takes options on either side of a scenario, and behind a script those that are audit's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line."""
        ctx.allow_interspersed_args = False
        values, *_ = self.make_parser(ctx).parse_args([*args])
        target, arguments = str(values.get("target")), values.get("arguments")
        if not values.get("module") and not target.endswith(".py"):
            ctx.allow_interspersed_args = True
        elif "--" not in args and isinstance(arguments, Sequence):
            ctx.allow_interspersed_args = self._reads_behind(ctx, target, arguments)
        return super().parse_args(ctx, args)

    def _reads_behind(self, ctx: Any, script: str, arguments: Sequence[str]) -> bool:
        """Whether all options behind a script are audit's, with a note if some are."""
        file = Path(script if script.endswith(".py") else f"{script.replace('.', '/')}.py")
        try:
            source = read_text(file)
        except ScenarioError:
            source = None
        own = {name: option for option in self.get_params(ctx) for name in option.opts}
        behind, words = list[str](), iter(arguments)
        for word in words:
            name, equals, _ = word.partition("=")
            if word.startswith("-") and word != "-":
                behind.append(name)
                if name in own and not equals and not getattr(own[name], "is_flag", True):
                    next(words, None)
        unclaimed = [name for name in behind if name in own and not _mentions(source or "", name)]
        taken = source is not None and bool(unclaimed) and unclaimed == behind
        if unclaimed and not ctx.resilient_parsing:
            names, them = ", ".join(unclaimed), "it" if len(unclaimed) == 1 else "them"
            warn(
                f"{names}: read as audit's; if {script} takes {them}, write -- before the script"
                if taken
                else f"{names} went to {script}; write {them} before the script"
            )
        return taken


def _mentions(source: str, option: str) -> bool:
    """Whether a script may take an option: its source has it, or a field of its name.

    Options that start a program are the script's, too.
    """
    word = option.removeprefix("--").replace("-", "[-_]")
    pattern = rf"--{word}(?![\w-])|^\s*{word}\s*:"
    return option in ("-m", "--module", "-h", "--help") or bool(re.search(pattern, source, re.M))


class Given(NamedTuple):
    """Options of the command line."""

    ranks: str | None
    exact: bool
    allow: list[str]
    max_steps: int | None


@command.command(
    name="audit",
    cls=Audit,
    epilog=COMMANDS["audit"].epilog,
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
)
def audit(
    target: Target,
    arguments: Arguments = None,
    ranks: Ranks = None,
    exact: Exact = False,
    allow: Allow = None,
    batch_arg: BatchArg = None,
    save_arg: SaveArg = None,
    resume_arg: ResumeArg = None,
    at_step: AtStep = None,
    module: Module = False,
    settings: Settings = None,
    max_steps: MaxSteps = None,
    html: Html = None,
    as_json: AsJson = False,
) -> int:
    """Compare training on several ranks with one device, and find the cause of a difference."""
    check_outputs(html)
    given = Given(ranks, exact, check_causes(allow or []), max_steps)
    of_script = {
        "--batch-arg": batch_arg,
        "--save-arg": save_arg,
        "--resume-arg": resume_arg,
        "--at-step": at_step,
    }
    if module or target.endswith(".py"):
        refuse_settings(settings)
        report = _script(target, arguments or [], module, given, of_script)
    else:
        refuse_script_options(target, arguments or [], of_script)
        report = _scenario(target, given, settings)
    if html is not None:
        from simdp.reports import page

        options = {**given._asdict(), **of_script}
        command = command_line(target, arguments or [], module, options, settings or [])
        write_whole(html, lambda stream: page.write(report, stream, command=command))
    if as_json:
        sys.stdout.write(report.to_json())
    else:
        from simdp.reports import audit_table

        show(audit_table.page(report, min(terminal_width(), WIDEST)))
    return 0 if report.same else CHECK_FAILED


def command_line(
    target: str, arguments: list[str], module: bool, options: dict[str, Any], settings: list[str]
) -> list[str]:
    """Write the arguments of simdp that repeat an audit."""
    words = ["audit"]
    for name, value in [*options.items(), ("set", settings)]:
        option = f"--{name.removeprefix('--').replace('_', '-')}"
        for argument in value if isinstance(value, list) else [value]:
            if argument not in (None, False):
                words += [option] if argument is True else [option, str(argument)]
    return [*words, *(["--module"] if module else []), target, *arguments]


def check_causes(allow: list[str]) -> list[str]:
    """Refuse names that are no cause.

    Raises
    ------
    ScenarioError
        With the known causes.
    """
    from simdp.results.audit import CAUSES

    wrong = [cause for cause in allow if cause not in CAUSES]
    if wrong:
        raise ScenarioError(
            [f"--allow: {unknown_name('cause', name, [*CAUSES])}" for name in wrong]
        )
    return allow


def refuse_settings(settings: list[str] | None) -> None:
    """Refuse ``--set`` with a script.

    Raises
    ------
    ScenarioError
        If it is given.
    """
    if settings:
        raise ScenarioError(
            f"--set {settings[0]}: is for scenarios; give a script its own arguments behind it."
        )


def refuse_script_options(
    target: str, arguments: list[str], of_script: dict[str, str | int | None]
) -> None:
    """Refuse options and arguments that only scripts have.

    Raises
    ------
    ScenarioError
        With a line for each.
    """
    wrong = [
        f"{option}: is for scripts, but {target} is a scenario; leave it out."
        for option, value in of_script.items()
        if value is not None
    ]
    if arguments:
        wrong.append(
            f"{' '.join(arguments)}: arguments are for scripts, but {target} is a scenario; "
            "keys are set by --set."
        )
    if wrong:
        raise ScenarioError(wrong)


def _scenario(target: str, given: Given, settings: list[str] | None) -> AuditReport:
    """Audit a scenario."""
    from simdp.studies.audit import audit_scenario

    return audit_scenario(
        Path(target),
        overrides_of(settings),
        ranks=None if given.ranks is None else numbers_of_ranks(given.ranks),
        exact=given.exact,
        allow=given.allow,
        max_steps=given.max_steps,
    )


def numbers_of_ranks(text: str) -> list[int]:
    """Read numbers of ranks, as 1,2,4.

    Raises
    ------
    ScenarioError
        If one is not a number of at least 1.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise ScenarioError(
            f"--ranks {text}: is no list of numbers of ranks; write for example 1,2,4."
        )
    return sorted({int(part) for part in parts})


def _script(
    script: str,
    arguments: list[str],
    module: bool,
    given: Given,
    of_script: dict[str, str | int | None],
) -> AuditReport:
    """Run a torch script on virtual ranks and compare the runs."""
    from simdp.cli.torchrun import torch_there

    torch_there("audit")
    from simdp.torch.audit import ScriptAudit, audit_script

    ranks, resume = ranks_of_script(given.ranks)
    chosen: dict[str, Any] = {
        name.removeprefix("--").replace("-", "_"): value for name, value in of_script.items()
    }
    if given.max_steps is not None:
        chosen["max_steps"] = given.max_steps
    request = ScriptAudit(
        script,
        tuple(arguments),
        ranks,
        resume,
        given.exact,
        tuple(given.allow),
        module=module,
        **chosen,
    )
    return audit_script(request)


def ranks_of_script(text: str | None) -> tuple[tuple[int, ...], tuple[int, int] | None]:
    """Read numbers of ranks of a script, as 1,2,4; of 4:2 also those before and after resuming.

    Raises
    ------
    ScenarioError
        If one is not a number of at least 1.
    """
    from simdp.distributed.launch import MAX_RANKS

    if text is None:
        return (1, 2, 4), None
    numbers: list[int] = []
    resume: tuple[int, int] | None = None
    for part in text.split(","):
        before, colon, after = part.partition(":")
        both = [number.strip() for number in ([before, after] if colon else [before])]
        if not all(number.isascii() and number.isdigit() and int(number) for number in both):
            raise ScenarioError(
                f"--ranks {text}: is no list of numbers of ranks; write for example 1,2,4, or "
                "4:2 to resume on another number."
            )
        numbers += [int(number) for number in both]
        if colon:
            resume = int(both[0]), int(both[1])
    if max(numbers) > MAX_RANKS:
        raise ScenarioError(f"--ranks {text}: a rank is a thread; {MAX_RANKS} ranks at most.")
    if len(set(numbers)) == 1:
        numbers.append(1)
    return tuple(sorted(set(numbers))), resume
