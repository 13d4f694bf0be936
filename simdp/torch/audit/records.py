"""Records of a run of a script: its samples, gradients, weights and calls, rank by rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simdp.arrays import Floats
from simdp.torch.audit.lines import Line


@dataclass
class LoaderRecord:
    """A DataLoader."""

    line: Line | None  # that creates it; of an iterable data set, the one that yields
    shuffles: bool  # the sampler draws an order
    sets_epoch: bool  # the sampler has ``set_epoch``
    size: int | None  # of the data set, without its subsets
    subset: tuple[int, ...] | None  # indices of a Subset into the whole data set
    iterable: bool
    set_epochs: list[int] = field(default_factory=list)  # values given to ``set_epoch``
    iterated: Line | None = None  # line of its latest iteration that trained
    content: int | None = None  # hash of some samples of the data set


@dataclass
class BatchRecord:
    """A batch that a loader returned."""

    loader: int
    epoch: int  # iterations of the loader before this one
    samples: tuple[int, ...]  # indices into the whole data set; hashes where there is none
    line: Line | None  # of the loop
    place: int  # batches of this iteration before it
    rows: tuple[int, ...] = ()  # hashes of the content


@dataclass
class LossCount:
    """A loss of torch.nn.functional: what it reduces over."""

    reduction: str
    count: float  # terms, without the ignored ones
    line: Line | None


@dataclass
class BackwardRecord:
    """A backward pass."""

    batch: int | None  # number of its batch; None without a loader
    samples: tuple[int, ...]  # of the batch, or hashes of the rows of the model's input
    line: Line | None
    step: int  # optimizer steps before it
    rows: int
    inputs: int = 0  # rows of the model's input
    indexed: bool = False  # samples are indices by which the script took rows of a tensor
    counts: list[LossCount] = field(default_factory=list)
    scalars: dict[Line, float] = field(default_factory=dict)  # numbers computed for the loss
    sizes: dict[Line, float] = field(default_factory=dict)  # elements of tensors computed for it
    local: dict[str, Floats] = field(default_factory=dict)  # gradients before a reduction


@dataclass
class ClipRecord:
    """A call that clips gradients."""

    line: Line | None
    norm: float | None


@dataclass
class StepRecord:
    """An optimizer step."""

    optimizer: int
    number: int  # of this optimizer, from 0
    at: int  # of the script, from 0: optimizers share one without a backward pass between them
    line: Line | None
    calls: int  # collectives of the rank before it
    lr: tuple[float, ...]
    settings: tuple[dict[str, Any], ...] = ()  # numbers of each group
    # sketches, of rank 0 and of shards; probes, of all ranks
    grads: dict[str, Floats | None] = field(default_factory=dict)
    grad_probes: dict[str, Floats | None] = field(default_factory=dict)
    shards: set[str] = field(default_factory=set)  # names whose sketches are of a shard
    before: dict[str, Floats | None] = field(default_factory=dict)  # probes
    after: dict[str, Floats | None] = field(default_factory=dict)
    after_probes: dict[str, Floats | None] = field(default_factory=dict)
    state: dict[str, Floats] = field(default_factory=dict)  # of the optimizer, before the step
    buffers: dict[str, Floats] = field(default_factory=dict)  # in its first forward pass
    generators: int = 0  # hash of the states of the random generators before the forward pass
    # number and hash of each generator of the script that drew, before its first draw
    own_generators: tuple[tuple[int, int], ...] = ()
    scheduled: int = 0  # steps of schedulers so far
    reduces: bool = False  # the optimizer itself reduces gradients, within its step


@dataclass
class CallRecord:
    """A collective."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    line: Line | None
    step: int
    backward: bool  # inside a backward pass
    op: str
    values: Floats | None  # of at most 16 elements, before the call
    stack: tuple[tuple[str, Line], ...] = ()  # of the script, the outermost first


class Place(NamedTuple):
    """Where a tensor of a rank belongs, of ranks that have other ones, as of experts."""

    name: str  # on the fewest ranks
    offset: int  # of its first element there
    total: int  # elements there
    leads: bool  # whether no rank before has it too


@dataclass
class RankRecord:
    """All records of a rank."""

    loaders: list[LoaderRecord] = field(default_factory=list)
    batches: list[BatchRecord] = field(default_factory=list)
    backwards: list[BackwardRecord] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    clips: list[ClipRecord] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)
    schedulers: list[tuple[Line, ...]] = field(default_factory=list)  # innermost first
    # whether the script calls it itself, and its line
    scheduler_steps: list[tuple[bool, Line | None]] = field(default_factory=list)
    hooks: list[Line | None] = field(default_factory=list)  # of the script, on parameters
    norms: list[Line | None] = field(default_factory=list)  # batch norms that train
    dropouts: list[Line | None] = field(default_factory=list)
    draws: list[Line | None] = field(default_factory=list)  # of random numbers in a step
    augmented: list[Line | None] = field(default_factory=list)  # loaders whose data sets draw them
    wrappers: list[Line | None] = field(default_factory=list)  # DDP
    comm_hooks: list[tuple[bool, Line | None]] = field(default_factory=list)  # torch's own; line
    replicated: Line | None = None  # a call of nn.DataParallel on several devices
    staged: Line | None = None  # a backward pass of a tensor that is no loss, after a message
    # by parameter: elements, and hashes of the rows, before the first step; none of a DTensor
    contents: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)  # parameters of modules wrapped before
    broadcasts_buffers: bool = True
    bypasses: list[Line | None] = field(default_factory=list)
    trained: list[Line | None] = field(default_factory=list)  # calls of the model that train it
    callers: dict[str, Line | None] = field(default_factory=dict)  # by parameter: its call
    # by parameter: the line that makes it, and that of the script's own call of the module's class
    creators: dict[str, Line | None] = field(default_factory=dict)
    makers: dict[str, Line | None] = field(default_factory=dict)
    buffer_lines: dict[str, Line | None] = field(default_factory=dict)  # that assign buffers
    frozen: list[Line | None] = field(default_factory=list)  # calls of modules without an optimizer
    loads: list[tuple[str, Line | None]] = field(default_factory=list)  # load_state_dict
    saves: list[tuple[str, Line | None]] = field(default_factory=list)  # state_dict, and save
    splits: list[Line | None] = field(default_factory=list)  # random_split and randperm
    index_draws: list[Line | None] = field(default_factory=list)  # of random integers
    states: dict[str, Floats] = field(default_factory=dict)  # modules outside optimizers, at last
    rates: list[tuple[float, ...]] = field(default_factory=list)  # of each optimizer, at the end
    ended: bool = False  # whether the script ended before its steps were cut
    follows: int | None = None  # rank of which it has another part of each weight, and the samples
    # unit in the last place of the shorter data type of autocast or FSDP's mixed precision, or 0
    autocast: float = 0.0
    compiled: bool = False

    def divide_batches(self) -> None:
        """Give each backward pass its part of a batch that the script splits for several."""
        by_batch: dict[int, list[BackwardRecord]] = {}
        for backward in self.backwards:
            if backward.batch is not None:
                by_batch.setdefault(backward.batch, []).append(backward)
        for batch, passes in by_batch.items():
            whole, begin = self.batches[batch].samples, 0
            if len(passes) == 1 or sum(backward.inputs for backward in passes) != len(whole):
                continue
            for backward in passes:
                end = begin + backward.inputs
                backward.samples, backward.rows = whole[begin:end], backward.inputs
                begin = end


def ranks_counted(number: int) -> str:
    """Return a number of ranks as in a sentence."""
    return f"{number} rank{'s' * (number > 1)}"


@dataclass
class RunRecord:
    """A run of a script."""

    world_size: int
    ranks: list[RankRecord]
    error: str = ""
    kind: str = ""  # deadlock, mismatch, or rank
    seconds: float = 0.0  # CPU
    output: str = ""
    stopped_at: int | None = None  # optimizer steps of rank 0 when it was stopped
    started: int | None = None  # ranks that the script started itself
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Why the script failed, in a line: its exception, or what it printed before it left."""
        printed = self.output.strip().splitlines()
        if " left with " in self.error and printed:  # as argparse does
            return printed[-1].strip()
        lines = [line for line in self.error.splitlines() if line.strip(": ")]
        raised = lines[-2] if len(lines) > 1 else lines[-1]
        return raised.split("]: ")[-1].strip()
