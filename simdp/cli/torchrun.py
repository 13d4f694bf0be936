"""simdp torchrun."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from simdp.cli.commands import COMMANDS
from simdp.cli.common import STOPPED, check_folder, show, warn
from simdp.cli.completion import clusters
from simdp.cli.exec import write_program
from simdp.distributed.launch import ProgramResult, Where, find
from simdp.errors import ScenarioError, unknown_name
from simdp.files import check_outputs

if TYPE_CHECKING:
    from simdp.torch.ranks import Rank
    from simdp.torch.steps import Counted, Steps

OLDEST = 2, 14
"""The oldest torch that all scripts of the tests were tried with; before it hooks are missing."""

PREFIX = "[${role_name}${local_rank}]:"
"""torchrun's default for ``--log-line-prefix-template``."""

NO_FILES = "lines of ranks are not written to files; leave it out, and write > FILE at the end."
INERT = {
    "--max-restarts": ("0", "simdp does not restart ranks; leave it out, or write 0."),
    "--rdzv-conf": ("[^=,]+=[^=,]+(,[^=,]+=[^=,]+)*", "must be KEY=VALUE,..., as timeout=60."),
    "--monitor-interval": (r"\d+(\.\d*)?|\.\d+", "must be seconds, as 0.1."),
    "--shutdown-timeout": (r"\d+", "must be whole seconds, as 30."),
    "--start-method": ("spawn|fork|forkserver", "must be spawn, fork or forkserver."),
    "--run-path": ("True", ""),
    "--no-python": (None, "other programs cannot run on virtual ranks; give a script."),
    "--virtual-local-rank": (
        None,
        "a rank keeps its LOCAL_RANK and sees all devices; leave it out.",
    ),
    "--numa-binding": (None, "cores that a process is bound to are not simulated; leave it out."),
    "--signals-to-handle": (
        "((SIGTERM|SIGINT|SIGHUP|SIGQUIT)(,|$))*",
        "no signal is passed on to virtual ranks; leave it out, and end a run by Ctrl-C.",
    ),
    "--event-log-handler": ("null", "no agent runs that could log events; leave it out."),
    "--redirects": ("0", NO_FILES),
    "--log-dir": (None, NO_FILES),
    "--logs-specs": (None, NO_FILES),
    "--duplicate-stdout-filters": (None, NO_FILES),
    "--duplicate-stderr-filters": (None, NO_FILES),
    "--print-completion": (None, "is for torchrun alone; write python -m simdp --show-completion."),
}
"""Options of torchrun that change nothing here, or are refused: the pattern of values that are
accepted, where 0 asks for nothing, and why others are refused."""

SWITCHES = ("--run-path", "--no-python", "--virtual-local-rank")
"""Those without a value; theirs is ``True``."""

IN_ENVIRONMENT = (
    *("standalone", "rdzv_backend", "rdzv_endpoint", "rdzv_id"),
    *("node_rank", "master_addr", "master_port", "local_addr"),
)
"""Options of torchrun whose values only a script's environment shows."""

command = typer.Typer(add_completion=False, rich_markup_mode=None)


class Torchrun(TyperCommand):
    """The command; its help lists options without an effect apart, and none that is refused."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options, and the options that are accepted and ignored."""
        sections: dict[str, list[tuple[str, str]]] = {
            "Arguments": [],
            "Options": [],
            "Accepted and ignored: one process runs all ranks; the script finds the values in its "
            "environment": [],
        }
        arguments, options, ignored = sections.values()
        without_effect = {*IN_ENVIRONMENT, *map(_parameter, INERT)}
        for parameter in self.get_params(ctx):
            section = ignored if parameter.name in without_effect else options
            if record := parameter.get_help_record(ctx):
                (arguments if parameter.param_type_name == "argument" else section).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _variable(name: str) -> str:
    """Return the environment variable of an option of torchrun."""
    return f"PET_{_parameter(name).upper()}"


def _flag(name: str, *letters: str, own: bool = False, **more: Any) -> Any:
    """Make an option in torchrun's two spellings, and of torchrun's environment variable.

    ``own`` are options of simdp, which have none.
    """
    spelled = name.replace("-", "_").replace("__", "--", 1)
    more = more if own else {"envvar": _variable(name), "show_envvar": False, **more}
    return typer.Option(*dict.fromkeys([name, *letters, spelled]), **more)


def _with_inert_options(function: Callable[..., int]) -> Callable[..., int]:
    """Replace the last parameter, ``**inert``, by the options in `INERT`."""
    signature = inspect.signature(function, eval_str=True)
    *parameters, rest = signature.parameters.values()
    for name, (accepted, _) in INERT.items():
        letters = ["-r"] if name == "--redirects" else []
        flag = _flag(name, *letters, help="No effect.", hidden=accepted is None)
        kind = bool if name in SWITCHES else str | None
        default = False if name in SWITCHES else None
        named = rest.replace(name=_parameter(name), kind=inspect.Parameter.KEYWORD_ONLY)
        parameters.append(named.replace(default=default, annotation=Annotated[kind, flag]))
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def _parameter(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


Script = Annotated[str, typer.Argument(metavar="SCRIPT.py", help="A torch script.")]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="ARGUMENTS", help="Arguments of the script.")
]
Nnodes = Annotated[str, _flag("--nnodes", help="Nodes; of a range MIN:MAX the larger number.")]
NprocPerNode = Annotated[
    str, _flag("--nproc-per-node", help="Ranks per node; auto or gpu: one per device.")
]
Cluster = Annotated[
    Path,
    typer.Option(
        "--cluster",
        "-C",
        help="A machine, or a scenario, for its cluster.",
        autocompletion=clusters,
    ),
]
Module = Annotated[bool, _flag("--module", "-m", help="SCRIPT is a module, as of python -m.")]
Standalone = Annotated[bool, _flag("--standalone", help="One node; --rdzv-* have no effect.")]
RdzvBackend = Annotated[str, _flag("--rdzv-backend", help="static or c10d.")]
RdzvEndpoint = Annotated[
    str, _flag("--rdzv-endpoint", help="HOST:PORT, for MASTER_ADDR and MASTER_PORT.")
]
RdzvId = Annotated[str, _flag("--rdzv-id", help="TORCHELASTIC_RUN_ID.")]
Role = Annotated[str, _flag("--role", help="ROLE_NAME, and the mark of --tee.")]
NodeRank = Annotated[int, _flag("--node-rank", help="Only 0: all nodes run here.")]
MasterAddr = Annotated[str, _flag("--master-addr", help="MASTER_ADDR [127.0.0.1].")]
LocalAddr = Annotated[
    str, _flag("--local-addr", help="MASTER_ADDR, unless --master-addr or an endpoint is it.")
]
MasterPort = Annotated[int, _flag("--master-port", help="MASTER_PORT.")]
Tee = Annotated[
    str, _flag("--tee", "-t", help="Mark the lines of ranks: 1 of stdout, 2 of stderr, 3.")
]
LinePrefix = Annotated[
    str,
    _flag(
        "--log-line-prefix-template",
        envvar=["PET_LOG_LINE_PREFIX_TEMPLATE", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"],
        help="The mark of --tee, of ${role_name}, ${local_rank}, ${rank}, ${hostname}.",
    ),
]
LocalRanksFilter = Annotated[
    str, _flag("--local-ranks-filter", help="0,1: ranks whose output is shown [all].")
]
Fake = Annotated[
    bool, typer.Option("--fake", help="Keep no numbers, for models larger than this host.")
]
Seed = Annotated[int, typer.Option(help="Of stragglers, and of generators without a seed.")]
Out = Annotated[Path | None, typer.Option(help="Folder for files [runs/SCRIPT].")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print times as JSON; prints go to standard error.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the ranks' output, only.")]
Record = Annotated[
    Path | None,
    typer.Option(help="FILE.yaml: write what rank 0 trains as a scenario, for many fast runs."),
]
Compute = Annotated[
    Path | None,
    typer.Option(help="FILE.csv or .yaml: measured times of layers, in place of their kernels'."),
]
MaxSteps = Annotated[
    int | None,
    _flag(
        "--max-steps", own=True, help="End each rank after this number of optimizer steps [all]."
    ),
]
NoPlots = Annotated[bool, typer.Option("--no-plots", help="Draw no pictures.")]


@command.command(
    name="torchrun",
    cls=Torchrun,
    epilog=COMMANDS["torchrun"].epilog,
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
)
@_with_inert_options
def torchrun(
    script: Script,
    arguments: Arguments = None,
    nnodes: Nnodes = "1",
    nproc_per_node: NprocPerNode = "1",
    cluster: Cluster = Path("dgx-a100"),
    module: Module = False,
    standalone: Standalone = False,
    rdzv_backend: RdzvBackend = "static",
    rdzv_endpoint: RdzvEndpoint = "",
    rdzv_id: RdzvId = "none",
    role: Role = "default",
    node_rank: NodeRank = 0,
    master_addr: MasterAddr = "",
    master_port: MasterPort = 29500,
    local_addr: LocalAddr = "",
    tee: Tee = "0",
    log_line_prefix_template: LinePrefix = PREFIX,
    local_ranks_filter: LocalRanksFilter = "",
    fake: Fake = False,
    seed: Seed = 0,
    out: Out = None,
    record: Record = None,
    max_steps: MaxSteps = None,
    compute: Compute = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    no_plots: NoPlots = False,
    **inert: str | bool | None,
) -> int:
    """Run a torch script on every rank of a virtual cluster, with real tensors."""
    notes = check(inert, node_rank, rdzv_backend, standalone, nnodes, max_steps, module)
    torch_there()
    from simdp.torch import launch, ranks
    from simdp.torch.cuda.faking import faked
    from simdp.torch.isolation import keep_what_is_freed
    from simdp.torch.steps import Steps

    keep_what_is_freed()
    size = cluster_size(cluster, nnodes, nproc_per_node)
    code = launch.module(script) if module else launch.script(Path(script))
    folder = out or Path("runs") / code.name
    check_folder(folder, "trace.json")
    check_outputs(record)
    if standalone:  # torchrun assigns these itself then
        rdzv_backend, rdzv_endpoint, rdzv_id = "c10d", "", "none"
    hosts = (local_addr, master_addr) if rdzv_backend == "c10d" else (master_addr, local_addr)
    environ = environment(hosts, master_port, rdzv_endpoint, rdzv_id, role)  # c10d: own host first
    marks = output_prefixes(tee, local_ranks_filter, role, size.where, log_line_prefix_template)
    given = code, size.where, arguments or [], seed, environ, marks, size.device_count
    watched = recording(record, size.where, cluster)
    output = redirect_stdout(sys.stderr) if as_json else nullcontext()
    steps = Steps(max_steps, None if quiet else _report)
    for note in [] if quiet else notes:
        warn(note)
    with ranks.added(steps), computing(compute), watched, faked(fake), output:
        result = launch.run(*given)
    write_program(result, folder, not no_plots)
    _tell(result, script, size.where.name, folder, as_json, quiet, steps)
    return STOPPED if result.stopped else 0


def _report(rank: Rank, counted: Counted) -> None:
    """Print the table of a run that goes on."""
    from simdp.reports import table as program_table
    from simdp.reports.figures import seconds

    played, num_steps = rank.runtime.output(), len(counted.instants)
    step_time = seconds(counted.step_s)
    lines = [
        *program_table.lines(played.trace, played.clocks),
        f"after {num_steps} steps of {step_time} each; the run goes on, and Ctrl-C ends it with "
        "its table and files",
    ]
    stream = sys.__stderr__ or sys.stderr  # not a rank's, whose lines may be marked or hidden
    stream.write("".join(f"{line}\n" for line in lines))


def torch_there(command: str = "torchrun") -> None:
    """Refuse to run a command without torch, or with one that is too old.

    Raises
    ------
    ScenarioError
        If it is not installed, or older than `OLDEST`.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("torch")
    except PackageNotFoundError:
        problem = f"{command}: needs torch, which is not installed; pip install 'simdp[torch]'."
        raise ScenarioError(problem) from None
    if tuple(int(part) for part in installed.split(".")[:2]) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        problem = f"{command}: torch {installed} is installed; needs {wanted} or later: "
        raise ScenarioError(f"{problem}pip install 'torch>={wanted}'.")


def _tell(
    result: ProgramResult,
    script: str,
    where: str,
    folder: Path,
    as_json: bool,
    quiet: bool,
    steps: Steps,
) -> None:
    """Print a summary of the ranks."""
    from simdp.reports import table as program_table

    counted = steps.counted
    if as_json:
        summary = {
            "script": script,
            "cluster": where,
            "world_size": result.world_size,
            "simulated_s": result.simulated_s,
            "rank_s": result.clocks.tolist(),
            "steps": len(counted.instants),
            "step_s": counted.step_s if len(counted.instants) > 1 else None,
            "ranks": program_table.rows(result.trace, result.clocks),
            "counted_as_elementwise": steps.unknown_operators(),
        }
        sys.stdout.write(json.dumps(summary, indent=1) + "\n")
    elif not quiet:
        from simdp.reports.figures import percent, seconds

        count = f"{result.world_size} rank{'s' if result.world_size > 1 else ''}"
        took = seconds(result.simulated_s) if result.simulated_s else "0 s"
        for line in program_table.lines(result.trace, result.clocks):
            show(line)
        if len(counted.instants) > 1 and (steps.max_steps or result.stopped):
            show(f"{len(counted.instants)} steps of {seconds(counted.step_s)} each")
        unknown = [f"{name}, {percent(part)}" for name, part in steps.unknown_operators().items()]
        if unknown:
            show(f"counted as elementwise: {'; '.join(unknown)} of the step's bytes")
        show(f"{count} on {where}: {took} simulated; files in {folder}")


def record_script(script: str, arguments: Sequence[str], record: Path, cluster: Path) -> None:
    """Write the training of a script on one virtual GPU as a scenario; prints go to stderr.

    Parameters
    ----------
    script : str
        A torch script.
    arguments : sequence of str
        Its arguments.
    record : Path
        The scenario, with a file of its operators next to it.
    cluster : Path
        A machine.

    Raises
    ------
    SimdpError
        If torch is missing, or the script's training cannot be recorded.
    """
    torch_there("extrapolate")
    from simdp.torch import launch
    from simdp.torch.isolation import keep_what_is_freed

    keep_what_is_freed()
    size = cluster_size(cluster, "1", "1")
    environ = environment(("", ""), 29500, "", "none", "default")
    marks = output_prefixes("0", "", "default", size.where)
    given = size.where, list(arguments), 0, environ, marks, size.device_count
    with recording(record, size.where, cluster), redirect_stdout(sys.stderr):
        launch.run(launch.script(Path(script)), *given)


# Torchrun flags -----------------------------------------------------------------------------------


class ClusterSize(NamedTuple):
    """Where a script runs."""

    where: Where  # a cluster, and its number of ranks
    device_count: int  # of each node


def check(
    inert: Mapping[str, str | bool | None],
    node_rank: int,
    rdzv_backend: str,
    standalone: bool,
    nnodes: str,
    max_steps: int | None,
    module: bool,
) -> list[str]:
    """Reject options that have no counterpart here, and return notes on those without an effect.

    Raises
    ------
    ScenarioError
        With every problem.
    """
    problems, without_effect = _check_inert(inert)
    if module and inert.get("run_path"):
        problems.append("--run-path: runs a file, and -m a module; leave one of them out.")
    if node_rank:
        problems.append(f"--node-rank {node_rank}: this command runs all nodes; leave it out.")
    if rdzv_backend not in ("static", "c10d"):
        problems.append(f"--rdzv-backend: {unknown_name('name', rdzv_backend, ['c10d', 'static'])}")
    if standalone and nnodes not in ("1", "1:1"):
        problems.append(f"--nnodes {nnodes}: --standalone is for one node; leave one of them out.")
    if max_steps is not None and max_steps < 1:
        problems.append(f"--max-steps {max_steps}: must be >= 1; leave it out for all steps.")
    if problems:
        raise ScenarioError(problems)
    notes = [f"no effect on virtual ranks: {', '.join(without_effect)}"] if without_effect else []
    fewest, colon, most = nnodes.partition(":")
    if colon and fewest != most:
        notes.append(f"--nnodes {nnodes}: the number of nodes does not change; takes {most}")
    return notes


def _check_inert(inert: Mapping[str, str | bool | None]) -> tuple[list[str], list[str]]:
    """Return what is wrong with options in `INERT`, and the accepted ones without an effect.

    A number of restarts that an environment variable gives is accepted, since it may be meant for
    torchrun.
    """
    problems, without_effect = [], []
    for name, (accepted, reason) in INERT.items():
        value, variable = inert.get(_parameter(name)), _variable(name)
        if not value:
            continue
        set_by_variable = os.environ.get(variable) and name in SWITCHES
        set_by_variable = set_by_variable or os.environ.get(variable) == value
        origin = f" ({variable})" if set_by_variable else ""
        if accepted is not None and re.fullmatch(accepted, str(value)):
            without_effect += [name + origin] if accepted != "0" else []
        elif name == "--max-restarts" and origin and str(value).isdecimal():
            without_effect.append(name + origin)
        else:
            given = name if name in SWITCHES else f"{name} {value}"
            problems.append(f"{given}{origin}: {reason}")
    return problems, without_effect


def cluster_size(cluster: Path, nnodes: str, nproc_per_node: str) -> ClusterSize:
    """Find the cluster at the requested size.

    Raises
    ------
    ScenarioError
        If the cluster or a number is wrong.
    """
    problems, nodes, ranks = [], _number(nnodes.rpartition(":")[2]), _number(nproc_per_node)
    if nodes is None or (":" in nnodes and _number(nnodes.partition(":")[0]) is None):
        problems.append(f"--nnodes {nnodes}: must be a number >= 1, or a range as 1:4.")
    if nproc_per_node in ("auto", "gpu"):
        ranks = int(find(cluster).cluster.local_size)
    elif ranks is None:
        problems.append(
            f"--nproc-per-node {nproc_per_node}: must be a number >= 1, auto or gpu; how many "
            "cores a host has is not known."
        )
    if problems or nodes is None or ranks is None:
        raise ScenarioError(problems)
    read = find(cluster, nodes * ranks, ranks)
    try:
        count = int(find(cluster).cluster.local_size)
    except ScenarioError:  # a scenario whose cluster has no size of its own
        count = ranks
    return ClusterSize(read, max(count, ranks))


def _number(text: str) -> int | None:
    """A number of at least 1; None if it is not one."""
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else None


@contextmanager
def recording(record: Path | None, where: Where, cluster: Path) -> Iterator[None]:
    """Record a script's training, and write it as a scenario at exit.

    Raises
    ------
    ScenarioError
        If the file's name is none of a scenario.
    SimdpError
        If the script trains nothing, or its training cannot be recorded.
    """
    if record is None:
        yield
        return
    from simdp.torch.ranks import added
    from simdp.torch.recording.recorder import ScriptRecorder

    if record.suffix not in (".yaml", ".yml"):
        problem = f"--record {record}: a scenario's name ends in .yaml; write {record}.yaml."
        raise ScenarioError(problem)
    recorder = ScriptRecorder(record)
    with added(recorder):
        yield
    recorder.write(where, cluster)


@contextmanager
def computing(path: Path | None) -> Iterator[None]:
    """Let layers take the compute times of a record.

    Raises
    ------
    ScenarioError
        If the record cannot be read, or the script has none of its layers.
    """
    if path is None:
        yield
        return
    from simdp.torch.charging.turns import Recorded, read_record
    from simdp.torch.ranks import added

    recorded = Recorded(read_record(path))
    with added(recorded):
        yield
    recorded.check()


def environment(
    hosts: Sequence[str],
    master_port: int,
    rdzv_endpoint: str,
    rdzv_id: str,
    role: str,
) -> dict[str, str]:
    """Environment variables of ranks, apart from those that identify a rank.

    An endpoint is the address of the first rank, else the first of ``hosts`` that is given.

    Raises
    ------
    ScenarioError
        If the endpoint is none.
    """
    host, port = next(filter(None, hosts), "127.0.0.1"), str(master_port)
    if rdzv_endpoint:
        host, _, port = rdzv_endpoint.partition(":")
        port = "29400" if port in ("", "0") else port  # 0: any that is free
        if not host or not port.isdigit():
            problem = f"--rdzv-endpoint {rdzv_endpoint}: must be HOST:PORT, as localhost:29400."
            raise ScenarioError(problem)
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": rdzv_id,
        "ROLE_NAME": role,
    }


def output_prefixes(
    tee: str, shown: str, role: str, where: Where, template: str = PREFIX
) -> list[dict[str, str | None]]:
    """Prefix of each rank's lines, on each stream; None for hidden ranks.

    The host of a rank is named by its node, as in ``node0``.

    Raises
    ------
    ScenarioError
        If a flag is wrong.
    """
    local, n = where.cluster.local_size, where.cluster.world_size
    if tee not in ("0", "1", "2", "3"):
        problem = f"--tee {tee}: must be 0, 1 (stdout), 2 (stderr) or 3 (both), for all ranks."
        raise ScenarioError(problem)
    chosen = [int(text) if text.isdigit() else local for text in shown.split(",") if text]
    if any(rank >= local for rank in chosen):
        problem = f"--local-ranks-filter {shown}: must be some of 0 ... {local - 1}, as 0,1."
        raise ScenarioError(problem)
    prefixes: list[dict[str, str | None]] = []
    for rank in range(n):
        mark = Template(template).safe_substitute(
            role_name=role, local_rank=rank % local, rank=rank, hostname=f"node{rank // local}"
        )
        hidden = bool(chosen) and rank % local not in chosen
        marks = {"stdout": mark * (int(tee) & 1), "stderr": mark * (int(tee) >> 1)}
        prefixes.append(dict.fromkeys(marks) if hidden else {**marks})
    return prefixes
