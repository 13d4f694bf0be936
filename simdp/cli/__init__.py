"""Command line: parses arguments, prints, exits; imports heavy modules only when needed.

Exit status: 0 done; 1 defect of simdp; 2 invalid input; 3 a requested check failed; 4 deadlock.
`commands` holds the table of commands.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from simdp.cli.commands import COMMANDS, epilog
from simdp.cli.common import STOPPED, warn
from simdp.version import __version__

MAX_PROBLEMS = 50
"""Lines that say what is wrong; who has more of them begins with the first."""

SETTINGS: dict[str, Any] = {
    "context_settings": {"help_option_names": ["-h", "--help"]},
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
}


class Commands(TyperGroup):
    """Group of the commands in the table; imports each on first use."""

    def list_commands(self, ctx: object) -> list[str]:
        """Their names."""
        return list(COMMANDS)

    def get_command(self, ctx: object, cmd_name: str) -> Any:
        """Load one of them."""
        if cmd_name not in COMMANDS:
            return None
        command = COMMANDS[cmd_name]
        module, _, name = command.home.partition(":")
        function = getattr(import_module(f"simdp.cli.{module}"), name)
        if not isinstance(function, typer.Typer):
            app = typer.Typer(add_completion=False, **SETTINGS)
            app.command(name=cmd_name, epilog=command.epilog)(function)
            function = app
        group: Any = typer.main.get_command(function)
        for subcommand in [*getattr(group, "commands", {}).values()] or [group]:
            subcommand.callback = partial(_without_contradictions, subcommand.callback)
            for option in subcommand.params:
                option.process_value = partial(_without_emptiness, option, option.process_value)
                if "--out" in option.opts:
                    option.opts.insert(0, "-o")
        return group

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command typed, or suggest the closest one."""
        close = get_close_matches(args[0], COMMANDS, n=1) if args else []
        if close and args[0] not in COMMANDS:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List them without loading them, but for those that are hidden."""
        shown = [
            (name, command.summary) for name, command in COMMANDS.items() if not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(shown)


def _without_emptiness(option: Any, process_value: Callable[..., Any], ctx: Any, value: Any) -> Any:
    """Read the value of an option or argument, unless it is an empty text."""
    from simdp.errors import ScenarioError

    if value == "" != option.default:
        name = option.opts[-1] if option.opts[-1].startswith("-") else option.name.upper()
        raise ScenarioError(f"{name} is empty; give a value, or leave it out (an unset variable?).")
    return process_value(ctx, value)


def _without_contradictions(command: Callable[..., Any], **given: Any) -> Any:
    """Run a command, unless one of its options leaves another one without an effect."""
    from simdp.errors import ScenarioError

    for loud, name in (("quiet", "as_json"), ("verbose", "as_json"), ("verbose", "quiet")):
        if given.get(loud) and given.get(name):
            option = "--json" if name == "as_json" else f"--{name}"
            raise ScenarioError(
                f"--{loud}: has no effect beside {option}; leave one of the two out."
            )
    return command(**given)


app = typer.Typer(
    name="python -m simdp",
    cls=Commands,
    help="Simulate data-parallel training: the numbers and the times.",
    epilog=epilog(
        "init                  a scenario of your model on your cluster",
        "run scenario.yaml     a table here, files and plots in runs/",
        "run 8gpu_ring         a shipped one: list scenarios",
    ),
    no_args_is_help=True,
    **SETTINGS,
)


def _version(shows: bool) -> None:
    if shows:
        print(f"simdp {__version__}")
        raise typer.Exit


@app.callback()
def common_options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Simulate data-parallel training: the numbers and the times."""


def run_command_line(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status; errors of the input are one line each."""
    _mend_streams()
    try:
        status = _run(arguments)
        sys.stdout.flush()  # a full disk raises on the write, not before
        return status
    except BrokenPipeError:  # the reader closed our output
        _silence_output()
        return 0
    except OSError as error:
        if error.filename is not None:
            raise
        _silence_output()
        warn(f"standard output: cannot be written to: {error.strerror or error}.")
        return 2


def _run(arguments: list[str] | None) -> int:
    from simdp.errors import ScenarioError, SimdpError

    if not (sys.argv[1:] if arguments is None else arguments):
        arguments = ["--help"]
    shown = warnings.showwarning
    warnings.showwarning = partial(_show, shown, set())
    try:
        status = app(arguments, standalone_mode=False)
    except ScenarioError as error:
        for line in error.problems[:MAX_PROBLEMS]:
            warn(line)
        if len(error.problems) > MAX_PROBLEMS:
            warn(f"and {len(error.problems) - MAX_PROBLEMS} more problems")
        return error.exit_status
    except SimdpError as error:
        for line in str(error).split("\n"):
            warn(line)
        return error.exit_status
    except (KeyboardInterrupt, typer.Abort):
        status = STOPPED
    except PermissionError as error:  # of a folder on the way to a file
        warn(f"{error.filename}: cannot be read: {error.strerror}.")
        return 2
    except MemoryError:
        warn("not enough memory; try fewer ranks, steps or samples.")
        return 2
    except Exception as error:
        # Typer's errors of usage; their base class is click's, which Typer may bring along itself.
        if not hasattr(error, "format_message"):
            raise
        warn(_usage(error, sys.argv[1:] if arguments is None else arguments))
        return 2
    finally:
        warnings.showwarning = shown
    if status == STOPPED:
        warn("stopped")
    return status if isinstance(status, int) else 0


OTHER_OPTIONS = {
    **dict.fromkeys(["--output", "--out-dir", "--output-dir", "--outdir"], "--out"),
    **dict.fromkeys(["--num-gpus", "--ngpus", "--n-gpus", "--world-size"], "--gpus"),
    **dict.fromkeys(["--gpu", "--device-name", "--gpu-type"], "--device"),
    **dict.fromkeys(["--batch-size", "--micro-batch-size", "--micro-batch"], "--microbatch"),
    **dict.fromkeys(["--seq-len", "--seq-length", "--context-length"], "--sequence-length"),
    **dict.fromkeys(["--gpus-per-node", "--devices-per-node"], "--node-size"),
}
"""Options of other tools, and what most commands call them."""


def _usage(error: Any, arguments: list[str]) -> str:
    """Write an error of usage, with what was probably meant."""
    from simdp.spec import OTHER_NAMES

    line: str = error.format_message().replace("\n", " ")
    if extra := re.fullmatch(r"Got unexpected extra argument\S* \((.*)\)", line):
        values = extra[1].split(" ")
        place = arguments.index(values[0]) if values[0] in arguments else 0
        option, before = ["", "", *arguments][place : place + 2]
        if "=" in before:
            return f"{line}. Did you mean {','.join([before, *values])}?"
        if option in ("--over", "--set", "--choose"):
            return f"{line}. Did you mean {before}={','.join(values)}?"
    name, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if name is None or context is None or "Did you mean" in line:
        return line
    options = [option for param in context.command.params for option in param.opts]
    key = "gpus" if OTHER_OPTIONS.get(name) == "--gpus" else name.strip("-").replace("-", "_")
    if OTHER_OPTIONS.get(name) in options:
        return f"{line.partition(' (')[0]}. Did you mean {OTHER_OPTIONS[name]}?"
    if "--set" in options and key in OTHER_NAMES:
        return f"{line.partition(' (')[0]}. Did you mean {OTHER_NAMES[key]}, by --set KEY=VALUE?"
    return line


def _show(
    otherwise: Callable[..., None],
    seen: set[str],
    message: Warning | str,
    category: type[Warning],
    *where: object,
    **options: object,
) -> None:
    """Print the advice on an old key once, in one line; show other warnings as Python does."""
    from simdp.keys import OldKeyWarning

    if not issubclass(category, OldKeyWarning):
        otherwise(message, category, *where, **options)
    elif str(message) not in seen:
        seen.add(str(message))
        warn(str(message))


def _mend_streams() -> None:
    """Discard output to closed streams, and replace characters that a terminal cannot show.

    The latter as an escape, such as a name of a file in another encoding.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream.closed:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115  for good
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _silence_output() -> None:
    """Discard all further output, including Python's flush at exit."""
    with suppress(OSError, ValueError):  # of a stream that is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
