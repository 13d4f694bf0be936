"""The command line: parses, prints, exits. No physics; whatever is heavy is imported when needed.

Exit status: 0 done; 1 our fault; 2 the input is wrong; 3 a check that the user asked for did not
hold; 4 deadlock. Commands live in the files beside this one, and are
registered here.
"""

from __future__ import annotations

import os
import sys

import typer

from simdp.cli import calibrate, collective, compare, gallery, listing, run, schema, validate
from simdp.cli.common import complain
from simdp.cli.exec import execute

STOPPED = 130

app = typer.Typer(
    name="python -m simdp",
    help="Simulate data-parallel training: the numbers and the times.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(run.run)
app.command()(run.check)
app.command(name="list")(listing.list_kinds)
app.command()(compare.compare)
app.command()(collective.collective)
app.command(name="exec")(execute)
app.add_typer(calibrate.commands, name="calibrate")
app.command()(validate.validate)
app.command()(gallery.gallery)
app.command()(schema.schema)


def run_command_line(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status; errors of the input are one line each."""
    from simdp.errors import ScenarioError, SimdpError

    if not (sys.argv[1:] if arguments is None else arguments):
        arguments = ["--help"]
    try:
        status = app(arguments, standalone_mode=False)
    except ScenarioError as error:
        for line in error.problems:
            complain(line)
        return error.exit_status
    except SimdpError as error:
        complain(str(error))
        return error.exit_status
    except (KeyboardInterrupt, typer.Abort):
        status = STOPPED
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        # Typer's errors of usage; their base class is click's, which Typer may bring along itself.
        if not hasattr(error, "format_message"):
            raise
        complain(error.format_message().replace("\n", " "))
        return 2
    if status == STOPPED:
        complain("stopped")
    return status if isinstance(status, int) else 0
