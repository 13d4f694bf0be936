"""What is observed of a rank while its script runs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from simdp.torch.audit.lines import Line
from simdp.torch.audit.records import BackwardRecord, LossCount, Place, RankRecord
from simdp.torch.ranks import Rank, current

KEY, PLACES = "audit", "places"
"""Keys of a rank's observation, and of the places of its tensors that other ranks do not have."""

DRAWS = ("randn", "rand", "randint", "randn_like", "rand_like", "bernoulli", "normal")
"""Functions of torch whose draws are observed."""

LOSSES = (
    *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss"),
    *("gaussian_nll_loss", "soft_margin_loss", "cosine_embedding_loss", "margin_ranking_loss"),
)
"""Losses of torch.nn.functional with a reduction."""

NUM_OWN = 16
"""Generators of a script that are followed; more are made anew for each draw."""


class Observation:
    """What is recorded of a rank, and what the patches need between two calls."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.record = RankRecord()
        self.loaders: dict[int, int] = {}  # by id
        self.kept: list[Any] = []  # loaders, whose ids are used
        self.iterations: dict[int, int] = {}  # of a loader
        self.loaded: dict[int, int] = {}  # batches of a loader
        self.optimizers: dict[int, int] = {}
        self.stepped: list[Any] = []  # optimizers, in the order of their first steps
        self.parameters: dict[int, Any] = {}  # by id
        self.names: dict[int, str] = {}
        self.roots: list[Any] = []
        self.root_ids: set[int] = set()
        self.inside_ddp: set[int] = set()
        self.cores: set[int] = set()  # modules that DDP wraps
        self.wrapped: set[int] = set()
        self.batch: int | None = None  # the last one
        self.recent: list[tuple[int, list[Any]]] = []  # the last ones, and probes of their tensors
        # depth and line of the outermost call by the script within the model's
        self.inner: tuple[int, Line] | None = None
        self.by_library = False  # whether a library's loop calls the model
        self.used: int | None = None  # the one in the model's input since the last backward pass
        self.rows: tuple[int, ...] = ()  # hashes of the last model input
        self.num_rows = 0
        self.counts: list[LossCount] = []
        self.backward: BackwardRecord | None = None
        self.since = 0  # backward passes since the last step
        self.depth = 0  # of nested modules
        self.stepping = 0  # of nested optimizers
        self.messaged = False  # whether a message was sent or received since the last step
        self.integer_draws: Counter[Line] = Counter()  # of the script, recorded by a change
        self.step = 0  # steps of the script so far
        self.together: set[int] = set()  # optimizers that took the last step
        self.places: dict[str, Place] = {}  # of tensors that other ranks do not have
        self.renamed: dict[str, str] = {}  # their names on this rank, and in ``places``
        self.scheduled = 0
        self.building = 0  # of nested schedulers
        self.states: Any = None  # of the generators
        self.own: list[Any] = []  # generators that the script makes, by their first draw
        self.own_states: dict[int, Any] = {}  # by number, before their first draw of the step
        self.fetched: tuple[int, ...] | None = None
        self.loading: tuple[int, int] | None = None  # loader and batch that are loaded now
        self.creators: dict[int, Line | None] = {}
        self.makers: dict[int, Line | None] = {}
        self.index: tuple[int, ...] = ()  # by which the script last took rows of a tensor
        self.callers: dict[int, Line | None] = {}
        self.buffers: dict[str, Any] = {}
        self.drawn: tuple[int, int] = (0, 0)  # backward passes, and draws since the last one

    def next_draw(self) -> int:
        """Count a draw of random numbers by a change; return its number in the micro-step."""
        passes = len(self.record.backwards)
        number = self.drawn[1] + 1 if self.drawn[0] == passes else 1
        self.drawn = passes, number
        return number

    def number_of(self, generator: Any) -> int | None:
        """Return the number of a generator that the script makes; None behind the first 16."""
        for number, own in enumerate(self.own):
            if own is generator:
                return number
        if len(self.own) >= NUM_OWN:
            return None
        self.own.append(generator)
        return len(self.own) - 1

    @property
    def trained(self) -> int | None:
        """The batch that the model got last; the one loaded last where it was changed before."""
        return self.batch if self.used is None else self.used

    def steps_of(self, optimizer: int) -> int:
        """Return the number of steps of an optimizer so far."""
        return sum(step.optimizer == optimizer for step in self.record.steps)

    def number_of_optimizer(self, optimizer: Any) -> int:
        """Return the number of an optimizer, in the order of their first steps."""
        if id(optimizer) not in self.optimizers:
            self.optimizers[id(optimizer)] = len(self.stepped)
            self.stepped.append(optimizer)
        return self.optimizers[id(optimizer)]

    def begin_step(self, optimizer: int) -> int:
        """Count an optimizer's step; return the number of the script's step that it is part of.

        A step of the script is all steps of optimizers without a backward pass between them.
        """
        if self.since or not self.step or optimizer in self.together:
            self.step += 1
            self.together = set()
        self.together.add(optimizer)
        return self.step - 1


def mine() -> Observation | None:
    """Return the observation of the running rank; None outside of ranks."""
    rank = current()
    return None if rank is None else rank.state.get(KEY)


_LOCAL = threading.local()


@contextmanager
def unobserved() -> Iterator[None]:
    """Record nothing of the calls inside."""
    before, _LOCAL.off = getattr(_LOCAL, "off", False), True
    try:
        yield
    finally:
        _LOCAL.off = before


def seen() -> Observation | None:
    """Return the observation of the running rank, unless its calls are not to be recorded."""
    return None if getattr(_LOCAL, "off", False) else mine()


def after(observe: Callable[..., None]) -> Callable[..., Any]:
    """Return a call for `Patches.wrap` of a method: it is made, then observed with its object."""

    def call(here: Observation, original: Any, owner: Any, *args: Any, **kwargs: Any) -> Any:
        value = original(owner, *args, **kwargs)
        observe(here, owner)
        return value

    return call


def before(observe: Callable[..., None]) -> Callable[..., Any]:
    """Return a call for `Patches.wrap`: it is observed with its arguments, then made."""

    def call(here: Observation, original: Any, *args: Any, **kwargs: Any) -> Any:
        observe(here, *args, **kwargs)
        return original(*args, **kwargs)

    return call


def before_step(act: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], Any]:
    """Return a hook of optimizers that acts before a step, but when the gradients are computed.

    A step may be given a closure that computes them, as by Lightning's Trainer.
    """

    def hook(optimizer: Any, args: Any, kwargs: Any) -> Any:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            act(optimizer, args, kwargs)
            return None
        first = True

        def evaluated() -> Any:
            nonlocal first
            loss = closure()
            if first:
                first = False
                act(optimizer, args, kwargs)
            return loss

        if len(args) > 1:
            return (args[0], evaluated, *args[2:]), kwargs
        return args, {**kwargs, "closure": evaluated}

    return hook


def add(lines: list[Line | None], line: Line | None) -> None:
    """Add a line once."""
    if line not in lines:
        lines.append(line)


# Names --------------------------------------------------------------------------------------------

PREFIXES = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_forward_module.")


def clean(name: str) -> str:
    """Return a parameter's name without the prefixes of wrappers."""
    for prefix in PREFIXES:
        name = name.removeprefix(prefix).replace(f".{prefix}", ".")
    return name


def _tops(here: Observation) -> list[Any]:
    """Return the modules that are part of no other one."""
    inner = {id(child) for root in here.roots for child in root.modules() if child is not root}
    return [root for root in here.roots if id(root) not in inner]


def parameter_name(here: Observation, key: int) -> str:
    """Return the name of a parameter, by its identity."""
    if key not in here.names:
        taken = set(here.names.values())
        for root in _tops(here):
            for name, parameter in root.named_parameters():
                if id(parameter) in here.names:
                    continue
                short, unique, number = clean(name), clean(name), 2
                while unique in taken:
                    unique, number = f"{short} ({number})", number + 1
                here.names[id(parameter)] = here.renamed.get(unique, unique)
                taken.add(unique)
        if key not in here.names:
            place = list(here.parameters).index(key) if key in here.parameters else 0
            here.names[key] = f"parameter {place}"
    return here.names[key]


def inner_optimizer(optimizer: Any) -> Any:
    """Return the optimizer of a rank's own part, of one that splits parameters over ranks."""
    return getattr(optimizer, "optim", optimizer)


def parameters_of(optimizer: Any, first: int = 0) -> list[Any]:
    """Return the parameters of all groups from the first one on."""
    return [parameter for group in optimizer.param_groups[first:] for parameter in group["params"]]
