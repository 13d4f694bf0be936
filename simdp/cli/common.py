"""Helpers shared by commands: reading scenarios, printing, writing."""

from __future__ import annotations

import os
import re
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from simdp.cli.completion import SCENARIOS
from simdp.errors import ScenarioError, one_line

if TYPE_CHECKING:
    from simdp.files.documents import AddFile
    from simdp.reports.theme import Drawn
    from simdp.results.result import Columns
    from simdp.scenario.root import Scenario
    from simdp.studies.store import Store

# Common -------------------------------------------------------------------------------------------

INVALID, CHECK_FAILED = 2, 3
"""Exit statuses."""

ScenarioPath = Annotated[
    Path,
    typer.Argument(
        help="A YAML file, a saved result.json, or a name of `list scenarios`.",
        autocompletion=SCENARIOS,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a dotted key before validation."),
]

Workers = Annotated[
    int | None,
    typer.Option(min=1, max=1024, help="Processes of this machine that share the points [1]."),
]
Scheduler = Annotated[
    str | None,
    typer.Option(metavar="tcp://HOST:PORT", help="A Dask scheduler whose workers share them."),
]
GoOn = Annotated[bool, typer.Option("--continue", help="Reuse finished points, of any study.")]
StorePath = Annotated[
    Path | None,
    typer.Option("--store", metavar="FILE", help="Keeps finished points [runs/points.sqlite]."),
]
TablePath = Annotated[
    Path | None,
    typer.Option("--table", metavar="FILE.csv|.parquet", help="Write a row for each point."),
]


class Shared(NamedTuple):
    """Options of parallel workers and of the cache."""

    workers: int | None
    scheduler: str | None
    go_on: bool
    path: Path | None

    @property
    def given(self) -> list[str]:
        """The options that were given."""
        options = {
            "--workers": self.workers is not None,
            "--scheduler": self.scheduler is not None,
            "--continue": self.go_on,
            "--store": self.path is not None,
        }
        return [option for option, there in options.items() if there]

    def check(self) -> None:
        """Refuse options that contradict each other."""
        if self.workers is not None and self.scheduler is not None:
            raise ScenarioError(
                "--workers: a scheduler has workers of its own; leave one of the two out."
            )

    @contextmanager
    def store(self, out: Path | None, quiet: bool) -> Iterator[Store]:
        """Open the store: next to the folders of runs, or in the named folder.

        Cache hits are reported on standard error.
        """
        from simdp.studies.store import FILE, Store

        self.check()
        with Store(self.path or (out or Path("runs")) / FILE, self.go_on) as store:
            yield store
            if self.go_on and not quiet:
                num_other = store.num_other
                warn(f"points that were done already: {store.num_found}")
                if num_other:
                    warn(
                        f"{store.path}: {num_other} points are of other versions of simdp, and "
                        "were not taken"
                    )


@contextmanager
def progress_bar(what: str, silent: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on standard error after one second: done, rate, time left.

    Yields
    ------
    callable or None
        Called with the number done and the total; None without a terminal.
    """
    if silent or not sys.stderr.isatty():
        yield None
        return
    from time import monotonic

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:.3g}/s" if task.speed else "")

    columns = BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn()
    bar = Progress(
        TextColumn("{task.description}"),
        TextColumn("{task.percentage:>3.0f}%"),
        *columns,
        console=Console(stderr=True),
        transient=True,
    )
    task, begin = bar.add_task(what, total=None), monotonic()

    def progress(done: int, total: int) -> None:
        if not bar.live.is_started and monotonic() - begin > 1.0:
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield progress
    finally:
        if bar.live.is_started:
            bar.stop()


NoPlots = Annotated[bool, typer.Option("--no-plots", help="Draw no pictures, and no page.")]


def warn(line: str) -> None:
    """Print a line on standard error, if that takes it, broken between words on a terminal."""
    line = one_line(line)
    if sys.stderr.isatty():
        from shutil import get_terminal_size
        from textwrap import fill

        width = get_terminal_size().columns
        line = fill(line, width, break_long_words=False, break_on_hyphens=False)
    with suppress(OSError):
        print(line, file=sys.stderr)


def terminal_width() -> int:
    """Columns of the terminal, 80 at least; elsewhere of ``COLUMNS``, or 80."""
    from shutil import get_terminal_size

    from simdp.reports.figures import WIDTH

    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return max(WIDTH, get_terminal_size().columns) if is_known else WIDTH


STOPPED = 130
"""Exit status of a run that Ctrl-C ended."""


def show(renderable: object) -> None:
    """Print a Rich renderable."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would leave with status 1, which reports a failure

    Output(highlight=False, markup=False).print(renderable, soft_wrap=True)


def table_writer(path: Path | None) -> Callable[[Callable[[], Columns]], None]:
    """Prepare to write ``--table``; raise now for a path that cannot be written later."""
    if path is None:
        return lambda columns: None
    from simdp.files import check_outputs, write_whole
    from simdp.files.records import table_writer as writer_of

    try:
        write = writer_of(path)
        check_outputs(path)
    except ScenarioError as error:
        raise ScenarioError([f"--table {line}" for line in error.problems]) from None
    return lambda columns: write_whole(path, lambda stream: write(columns(), stream))


def load(path: Path, settings: list[str] | None) -> Scenario:
    """Read a scenario and apply ``--set``."""
    from simdp.scenario import load_scenario

    return load_scenario(path, overrides_of(settings))


def overrides_of(settings: list[str] | None) -> dict[str, Any]:
    """Parse ``--set``: dotted keys and YAML values."""
    from simdp.files import parse_yaml

    overrides = {}
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise ScenarioError(
                f"--set {setting}: is not KEY=VALUE; write for example cluster.world_size=4."
            )
        overrides[key] = _with_catalogue_devices(key, parse_yaml(value, f"--set {key}"))
    return overrides


def parsed_model(text: str, option: str) -> Any:
    """Parse a model as in YAML, or the path of a config.json or its folder; names come first."""
    from simdp.files import parse_yaml

    with suppress(OSError):  # of a mapping that is longer than a name of a file may be
        if (Path(text) / "config.json").is_file() or Path(text).is_file():
            from simdp.workload.models import MODEL

            if text not in MODEL.known():
                return {"kind": "transformers", "path": text}
    return parse_yaml(text, option)


def _with_catalogue_devices(key: str, value: object) -> Any:
    """Replace a driver's name of a device, as the value of a key, by the catalogue's."""
    if not re.search(r"(^|\.)device(\.\d+)?$", key):
        return value
    from simdp.cluster.hardware import catalogue_device

    listed = value if isinstance(value, list) else [value]
    devices = [(isinstance(name, str) and catalogue_device(name)) or name for name in listed]
    return devices if isinstance(value, list) else devices[0]


def listed_values(
    option: str,
    given: Sequence[str],
    example: str,
    short: Callable[[str, str], list[Any] | None] | None = None,
) -> dict[str, list[Any]]:
    """Parse ``KEY=V1,V2``, whose right side is a YAML list without its brackets.

    Parameters
    ----------
    option : str
        Which has them, for errors.
    given : sequence of str
        Its values.
    example : str
        Of a value, for errors.
    short : callable, optional
        Parses a key's right side first; returns None for a list.
    """
    from simdp.files import parse_yaml

    lists: dict[str, list[Any]] = {}
    for text in given:
        key, equals, values = text.partition("=")
        if not equals or not key:
            raise ScenarioError(f"{option} {text}: is not KEY=V1,V2; write for example {example}.")
        if key in lists:
            raise ScenarioError(
                f"{option} {text}: {key} is there already; give all its values at once."
            )
        expanded = short(key, values) if short is not None else None
        parsed = parse_yaml(f"[{values}]", f"{option} {text}") if expanded is None else expanded
        lists[key] = _with_catalogue_devices(key, parsed)
    return lists


def folder_of(
    out: Path | None,
    scenario: Path,
    settings: Mapping[str, object],
    swept: Collection[str],
    end: str,
) -> Path:
    """Choose the folder for files before a scenario is checked: its name, and an ending."""
    from simdp.scenario.overrides import as_written
    from simdp.scenario.shipped import find

    if out is not None:
        return out
    return Path("runs") / f"{as_written(find(scenario), settings, swept)['name']}-{end}"


def write_text(stream: IO[bytes], text: str) -> None:
    """Write text to a binary stream."""
    stream.write(text.encode())


def reproduction(
    command: str,
    scenario: Path,
    settings: Sequence[str] | None,
    options: Mapping[str, str] | None = None,
) -> list[str]:
    """Return a command line that reproduces the run from the scenario file.

    Parameters
    ----------
    command : str
        Such as ``"run"``.
    scenario : Path
        As given; of a path from the root only the name stays.
    settings : sequence of str or None
        Those of ``--set``.
    options : mapping of str to str, optional
        Others, with their values.
    """
    words = [command, scenario.name if scenario.is_absolute() else str(scenario)]
    for setting in settings or ():
        words += ["--set", setting]
    for option, value in (options or {}).items():
        words += [option, value]
    return words


def add_page(add: AddFile, document: object, **more: object) -> None:
    """Add the page that people share to the files of a command.

    Parameters
    ----------
    add : callable
        Of `simdp.files.whole_files`.
    document : value
        Of a kind of `simdp.reports.page.KINDS`.
    **more
        As for `simdp.reports.page.write`.
    """
    from simdp.reports.page import write

    add("report.html", lambda stream: write(document, stream, **more))


def add_pictures(add: AddFile, document: Drawn) -> None:
    """Add the pictures that a document has the data for to the files of a command."""
    from simdp.reports.plots import fitting, render

    for kind in fitting(document):
        add(f"{kind}.png", partial(render, document, kind))


OUTPUTS = (
    *("result.json", "trace.json", "comparison.json", "collective.json", "job.json", "plan.json"),
    *("calibration.json", "validation.json", "difference.json", "extrapolation.json"),
    *("report.html", "report.md", "collectives_against_measured.png", "throughput_*.png"),
    "traces/rank*.pt.trace.json.gz",
)
"""What any command writes into its folder, besides pictures of `CHARTS`."""

MARKS = {
    ".json": b'"simdp"',
    ".gz": b'"simdp"',
    ".html": b'<meta name="generator" content="simdp',
    ".md": b"# Measured and simulated times",
    ".png": b"Software\0simdp",
}
"""What the first `HEAD` bytes of a file of simdp contain, by its suffix."""

HEAD = 4096


def check_folder(folder: Path, document: str, *inputs: Path) -> None:
    """Refuse a folder before the work if it cannot be written to, or a file in it must stay.

    A folder holds the files of one run: those of an earlier one are removed (`earlier_files`).

    Parameters
    ----------
    folder : Path
        Of a command's files.
    document : str
        The file that the command always writes.
    *inputs : Path
        Files and folders that the command reads; they are not removed.
    """
    from simdp.files import check_outputs

    check_outputs(folder / document)
    read = [path.resolve() for path in inputs]
    for path in sorted({path for name in earlier_files(folder) for path in folder.glob(name)}):
        whole = path.resolve()
        if path.is_dir():
            continue
        if not _is_ours(path):
            why = "was not written by simdp"
        elif path.name != document and (whole in read or _is_read(whole, read)):
            why = "is read by this command"
        else:
            continue
        raise ScenarioError(
            [f"{path}: {why}, and would be replaced or removed; choose another folder with --out."]
        )


def _is_read(path: Path, read: Sequence[Path]) -> bool:
    """Whether a document or a trace lies in a folder that is read."""
    return path.suffix in (".json", ".gz") and any(folder in path.parents for folder in read)


def _is_ours(path: Path) -> bool:
    """Whether simdp wrote a file, by its mark; nothing is lost with an empty one."""
    from simdp.files import open_file

    with open_file(path) as stream:
        head = stream.read(HEAD)
    if path.suffix == ".gz":
        with suppress(zlib.error):
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, HEAD)
    return not head or MARKS[path.suffix] in head


def earlier_files(folder: Path, *patterns: str) -> Iterator[str]:
    """Name the files that an earlier run of any command may have left, and patterns."""
    yield from (*OUTPUTS, *patterns)
    if any(folder.glob("*.png")):
        from simdp.reports.charts import CHARTS

        yield from (f"{kind}.png" for kind in CHARTS)


PART = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")


def ranks_of(text: str) -> list[int]:
    """Read which ranks are meant.

    Raises
    ------
    ScenarioError
        If it is no list of numbers and ranges.
    """
    from simdp.cluster import MAX_WORLD_SIZE

    ranks = set[int]()
    for part in text.split(","):
        match = PART.fullmatch(part.strip())
        low, high = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not int(low) <= int(high) < MAX_WORLD_SIZE:
            wanted = f"write such as 0-7 or 0,3,8-15, all below {MAX_WORLD_SIZE}."
            raise ScenarioError(f"--ranks: {text!r} is no list of ranks; {wanted}")
        ranks.update(range(int(low), int(high) + 1))
    return sorted(ranks)
