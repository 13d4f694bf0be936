"""Workloads: model, data, loss, optimizer, and the batches of each rank and step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from functools import cached_property
from math import sqrt
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails

from simdp.arrays import Array
from simdp.errors import ScenarioError, joined, shown, unknown_name
from simdp.spec import Bool, Float, Int, form_of, problem
from simdp.workload import weights
from simdp.workload.compute import COMPUTE, AnyCompute, AnyHost, Host, Input
from simdp.workload.datasets import DATASET, AnyDataset
from simdp.workload.datasets.base import Dataset
from simdp.workload.faults import AnyFault
from simdp.workload.finetuning import Lora, Quantized, matching
from simdp.workload.layers.base import ModelGraph, ShapeError
from simdp.workload.losses import AnyLoss
from simdp.workload.models import MODEL, AnyModel, in_layers
from simdp.workload.optimizers import AnyOptimizer
from simdp.workload.precision import AnyPrecision, ScalerSettings, numpy_dtype
from simdp.workload.sampling import (
    BatchSchedule,
    DropLast,
    Packing,
    Permutation,
    Rebalance,
    Shuffle,
    TorchShuffle,
    read_permutation,
)
from simdp.workload.schedules import AnySchedule
from simdp.workload.schedules.base import Progress

MicroSteps = Annotated[Int, Field(ge=1, le=10**6)]
Sizes = Annotated[list[Annotated[Int, Field(ge=1, le=10**9)]], Field(min_length=1)]

OF_GRAPH = {"attention", "frozen", "lora", "mode", "model", "quantized", "sync_batchnorm"}
OF_GRAPH |= {"dtype", "precision"}  # the storage of 4-bit weights
"""Keys that the graph depends on."""

_MADE: deque[tuple[tuple[Any, ...], ModelGraph]] = deque(maxlen=8)  # values of OF_GRAPH, graph

__all__ = ["Workload", "workload_problems"]


class Workload(BatchSchedule):
    """Training or inference of each rank, without its communication."""

    # For editors: the other keys have defaults that follow from the model and its data.
    model_config = ConfigDict(json_schema_extra={"required": ["model"]})

    mode: Literal["training", "inference"] = "training"
    """In inference ranks only compute outputs: the model is in torch's ``eval()`` mode, the loss
    only defines the form of the dataset's targets, and keys that only training uses are errors."""
    model: AnyModel
    """Model to train."""
    weights: str | None = None
    """A file with the initial parameters, relative to the scenario file: npz, safetensors, or the
    index of several safetensors files, ``model.safetensors.index.json``; by default those of a
    torch script after ``torch.manual_seed(seed)``."""
    dataset: AnyDataset
    """``none`` by default if the model has times but no numbers, or if compute is measured, else
    required."""
    loss: AnyLoss
    """By default mse, or cross_entropy for a dataset of classes (fused for mpt, as in llm-foundry);
    ``none`` without numbers."""
    optimizer: AnyOptimizer = Field("sgd", validate_default=True)
    """Optimizer of the parameters."""
    lr_schedule: AnySchedule = Field("none", validate_default=True)
    """The learning rate lr(k) of step k = 1, 2, ..., or with ``per: epoch`` of epoch k."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Multiply the optimizer's learning rate, before the schedule, by world_size or its square
    root."""
    recompute: Literal["none", "blocks", "selective", "selective_every_other"] = "none"
    """Activations that are not kept but recomputed in backward, block by block, as with
    torch.utils.checkpoint: all; all but outputs of matrix products and of fused attention; or the
    same, but of products only every second one kept."""
    recompute_share: Float = Field(1.0, gt=0, le=1)
    """Share of the blocks that are checkpointed, spread evenly over the model: 0.5 is every second
    one (torchtitan's ``selective_ac_option: "2"``)."""
    use_reentrant: Bool = False
    """As torch.utils.checkpoint's argument: true runs a whole block again; false stops behind the
    last tensor that backward needs."""
    keeps_outputs: Bool = True
    """Whether the script keeps the model's outputs in a variable during backward. False: it deletes
    them (``del pred``)."""
    compile: Bool = False
    """Whether the model's blocks are compiled, as by torch.compile: elementwise calls between
    products run as one kernel, and keep less for backward. Numbers do not change."""
    cuda_graphs: Bool = False
    """Whether a micro-step is replayed as a CUDA graph: one launch instead of one for each kernel
    of the model and the optimizer."""
    attention: Literal["eager", "flash"] | None = None
    """Implementation of attention: kernel by kernel, with all weights in memory; or one kernel in
    each direction, with memory that does not grow with the square of the length, as in torch's
    scaled_dot_product_attention: its flash kernel, or with padding, or in 32 bits, the
    memory-efficient one. The numbers are the same. By default as in the model's library: flash for
    llama, mistral, qwen2, mpt, gpt_neox and vit, eager for the others."""
    clip_grad_norm: Float | None = Field(None, gt=0)
    """Largest norm of the averaged gradient, as torch.nn.utils.clip_grad_norm_."""
    norm_type: Annotated[Float, Field(gt=0)] | Literal["inf"] = 2.0
    """Type of that norm, as the argument of clip_grad_norm_: p of the p-norm, or the largest
    magnitude. The metric ``grad_norm`` is the same norm."""
    clip_grad_value: Float | None = Field(None, gt=0)
    """Largest absolute value of any element of it, as torch.nn.utils.clip_grad_value_."""
    microbatch: Int | None = Field(None, ge=1, le=10**9)
    """Samples per rank and micro-step; required, unless global_batch or a list of grad_accum is
    given."""
    global_batch: Int | None = Field(None, ge=1, le=10**9)
    """Samples of all ranks per step, instead of ``microbatch``."""
    grad_accum: MicroSteps | Sizes = 1
    """Micro-steps per step; a list gives their sizes per rank."""
    samples_per_rank: Sizes | None = None
    """Samples of each rank per epoch, instead of the DistributedSampler's equal parts."""
    rebalance: Rebalance | None = None
    """Divide each global batch by the ranks' speeds, instead of equally."""
    group_by_length: Bool = False
    """Group samples of similar length; for padded data."""
    packing: Packing | None = None
    """Join samples of a language model to packs, which replace them: ``true``, or the length of
    packs. A micro-batch of packs is one row without padding. For timing only."""
    sync_batchnorm: Bool = False
    """Replace every batch norm by a SyncBatchNorm, as torch's convert_sync_batchnorm."""
    dtype: Literal["float32", "float64"] = "float32"
    """Of parameters and compute."""
    precision: AnyPrecision = Field("full", validate_default=True)
    """Mixed precision."""
    shuffle: Shuffle = False
    """Whether each epoch has a random order; or an order from a file, or as torch's samplers draw
    it."""
    drop_last: Bool | DropLast = False
    """Whether samples that do not fill every rank, or a whole step, are dropped at the end of an
    epoch; or, with ``{sampler: true, loader: false}``, as each of torch's sampler and loader
    does."""
    inject: tuple[AnyFault, ...] = ()
    """Faults injected into gradients."""
    quantized: Quantized | None = None
    """Frozen weights that are stored in 4 bits. For timing only."""
    lora: Lora | None = None
    """Adapters of some linear layers; all other parameters are frozen."""
    frozen: tuple[str, ...] = ()
    """Patterns, as in an optimizer's groups, of parameters with ``requires_grad_(False)``: they get
    no gradient, and no state of the optimizer. Backward ends at the first trainable layer."""
    unused: dict[int, tuple[str, ...]] = Field(default_factory=dict)
    """Parameters that a rank's loss does not depend on, by rank: there they are constants without
    gradient. The time that backward would save is not modelled."""
    gradient_noise: Bool = False
    """Whether to measure the noise of gradients, from those of single ranks and their mean, and
    with it the batch beyond which larger ones cost more samples than they save steps."""
    compute: AnyCompute = Field("roofline", validate_default=True)
    """Source of times: the devices' figures, measured steps, or a model with times."""
    host: AnyHost = Host()
    """Time of the host that its device waits for."""
    input: Input | None = None
    """The input pipeline; without it batches cost no time."""
    epochs: Int | None = Field(None, ge=1, le=10**9)
    """Length of training; one epoch if neither is given. Without a dataset two steps, the first of
    which is warm-up; with an input one for each worker and one for warm-up."""
    steps: Int | None = Field(None, ge=1, le=10**9)
    """Length of training; one epoch if neither is given. Without a dataset two steps, the first of
    which is warm-up; with an input one for each worker and one for warm-up."""

    @model_validator(mode="before")
    @classmethod
    def _what_others_imply(cls, data: object, info: ValidationInfo) -> object:
        """Fill in defaults that follow from the model and the dataset."""
        if not isinstance(data, dict):
            return data
        if data.get("mode") == "inference":
            data = {"optimizer": "none", **data}
        if getattr(MODEL.member(data.get("model")), "timed", False):
            data = {"dataset": "none", "compute": "profile", **data, "loss": data.get("loss")}
        if getattr(MODEL.member(data.get("model")), "recorded", False):
            data = {"dataset": "none", **data, "loss": data.get("loss")}
        if getattr(COMPUTE.member(data.get("compute")), "without_data", False):
            data = {"dataset": "none", **data}
            if "model" in data:
                data = {**data, "model": in_layers(data["model"])}
        if "loss" not in data:
            dataset = DATASET.member(data["dataset"]) if "dataset" in data else None
            base = (info.context or {}).get("base", Path())
            kind = dataset if dataset and issubclass(dataset, Dataset) else Dataset
            loss: Any = kind.loss_of(data.get("dataset"), base)
            if loss == "cross_entropy" and getattr(
                MODEL.member(data.get("model")), "trained_with_fused_loss", False
            ):
                loss = {"kind": loss, "implementation": "fused"}
            data = {**data, "loss": loss}
        return data

    @field_validator("packing", mode="before")
    @classmethod
    def _yes_no_or_how(cls, value: object) -> object:
        return {True: {}, False: None}[value] if isinstance(value, bool) else value

    @field_validator("shuffle", mode="wrap")
    @classmethod
    def _yes_no_a_file_or_torchs(
        cls, value: object, handler: ValidatorFunctionWrapHandler
    ) -> object:
        """Choose the form by the value, so that errors refer to the form that was written."""
        form: Any = Bool
        if isinstance(value, dict | Permutation | TorchShuffle):
            torch = isinstance(value, TorchShuffle) or (
                isinstance(value, dict) and "torch" in value
            )
            form = TorchShuffle if torch else Permutation
        return form_of(form).validate_python(value)

    @field_validator("grad_accum", mode="wrap")
    @classmethod
    def _number_or_sizes(cls, value: object, handler: ValidatorFunctionWrapHandler) -> object:
        """As for ``shuffle``."""
        form: Any = Sizes if isinstance(value, list) else MicroSteps
        return form_of(form).validate_python(value)

    @model_validator(mode="after")
    def _parts_suit_each_other(self) -> Workload:
        wrong = incompatible_options(self)
        if self.mode == "inference":
            wrong = for_training_only(self) | wrong
        if wrong:
            errors = [
                InitErrorDetails(type=problem(line), loc=(key,), input=getattr(self, key))
                for key, line in wrong.items()
            ]
            raise ValidationError.from_exception_data(type(self).__name__, errors)
        return self

    @model_validator(mode="after")
    def _batches_are_clear(self) -> Workload:
        sized = isinstance(self.grad_accum, list)
        if self.microbatch is not None and self.global_batch is not None:
            raise problem("microbatch and global_batch are both given; keep one of them.")
        if self.microbatch is None and self.global_batch is None and not sized:
            raise problem(
                "microbatch is required but was not given; add microbatch: 32, samples per rank "
                "and micro-step, or global_batch: 256, cut over the ranks."
            )
        if self.microbatch is not None and sized:
            raise problem(
                "microbatch and a list of grad_accum both give the sizes of micro-steps; "
                "leave microbatch out."
            )
        if self.norm_type != 2.0 and self.clip_grad_norm is None:
            raise problem(
                f"norm_type: {self.norm_type} is of clip_grad_norm, which is not given; add it, or "
                "leave norm_type out."
            )
        if self.clip_grad_norm is not None and self.clip_grad_value is not None:
            raise problem("clip_grad_norm and clip_grad_value are both given; keep one of them.")
        if self.epochs is not None and self.steps is not None:
            raise problem("epochs and steps are both given; keep one of them.")
        if isinstance(self.drop_last, DropLast) and (self.samples_per_rank or self.global_batch):
            key = "samples_per_rank" if self.samples_per_rank else "global_batch"
            raise problem(
                f"drop_last: sampler and loader are those of torch's DistributedSampler, which "
                f"{key} does without; write true or false."
            )
        if self.samples_per_rank is not None and self.global_batch is not None:
            raise problem(
                "samples_per_rank deals samples to ranks, and so does global_batch; "
                "use microbatch instead."
            )
        if self.rebalance is not None and (self.global_batch is None or sized):
            raise problem(
                "rebalance cuts a global batch over the ranks; give global_batch, with a number "
                "of grad_accum, in place of microbatch or sizes."
            )
        if self.rebalance is not None and self.compute.source == "profile":
            raise problem(
                "rebalance moves samples, but compute: profile takes as long with few as with "
                "many; leave it out, or use a model with layers."
            )
        wrong = self.precision.problem_with(self.dtype)
        if wrong:
            raise problem(wrong)
        return self

    def settled(self, base: Path) -> Self:
        """The same workload with the model's layers and shapes read from files.

        Raises ScenarioError if the data cannot be read.
        """
        model = self.model.read(base, self.gradient_itemsize)
        if not model.timed:
            shapes = self.dataset.input_shapes(model, base)
            if self.packing is not None and "x" in shapes:
                shapes = {**shapes, "x": (self.packing.most(model),)}
            model = model.with_input_shapes(shapes)
        if self.weights is not None:
            model = weights.fitted(model, base / self.weights)
        return self.model_copy(update={"model": model})

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """As pydantic's; rebuilds the graph if it may change."""
        copied = super().model_copy(update=update, deep=deep)
        if not OF_GRAPH.isdisjoint(update or ()):
            copied.__dict__.pop("graph", None)
        return copied

    @cached_property
    def graph(self) -> ModelGraph:
        """The model's graph with all options applied, such as adapters and frozen parameters."""
        of = tuple(getattr(self, key) for key in sorted(OF_GRAPH))
        for other, graph in _MADE:
            if other == of:
                return graph
        _MADE.append((of, self._graph()))
        return _MADE[-1][1]

    def _graph(self) -> ModelGraph:
        graph = self.model.graph
        if self.quantized is not None:
            from simdp.workload.transforms import in_4_bits  # imports layers

            stored = numpy_dtype(self.precision.weight_dtype(self.dtype)).itemsize
            graph = in_4_bits(graph, self.quantized, stored)
        if self.lora is not None:
            from simdp.workload.transforms import adapted  # imports layers

            graph = adapted(graph, self.lora)
        if self.frozen:
            from simdp.workload.finetuning import with_frozen

            graph = with_frozen(graph, self.frozen)
        if self.attention is not None:
            from simdp.workload.transforms import in_kernels  # imports layers

            graph = in_kernels(graph, self.attention)
        if self.mode == "inference":
            from simdp.workload.transforms import evaluated  # imports layers

            return evaluated(graph)
        if not self.sync_batchnorm:
            return graph
        from simdp.workload.transforms import synchronised  # imports layers

        return synchronised(graph)

    @property
    def adapters(self) -> frozenset[str]:
        """Parameters that `lora` adds to the model."""
        if self.lora is None:
            return frozenset()
        own = {parameter.name for parameter in self.model.graph.parameters}
        return frozenset(p.name for p in self.graph.parameters if p.name not in own)

    @property
    def itemsize(self) -> int:
        """Bytes per element of parameters and of full-precision values."""
        return np.dtype(self.dtype).itemsize

    @property
    def gradient_itemsize(self) -> int:
        """Bytes per element of a gradient that is sent."""
        return numpy_dtype(self.precision.gradient_dtype(self.dtype)).itemsize

    def learning_rate(self, base: float, progress: Progress, world_size: int) -> float:
        """Learning rate of a step, for parameters with the base rate ``base``.

        Only the base is scaled, as in a script that multiplies its optimizer's rate; rates that the
        schedule defines, such as ``eta_min``, are not.
        """
        factor = {"none": 1.0, "linear": float(world_size), "sqrt": sqrt(world_size)}
        return self.lr_schedule.at(factor[self.lr_scaling] * base, progress)

    def initial_weights(self, seed: int, rank: int, base: Path) -> dict[str, Array]:
        """Make a rank's parameters and buffers: from the file, else drawn as torch does.

        Rank r draws as after ``torch.manual_seed(seed + r)``; a strategy's constructor makes them
        equal to rank 0's.
        """
        if self.weights is not None:
            path, names = base / self.weights, self.model.file_names
            stored = weights.loaded(path, self.graph, self.dtype, names, self.adapters)
        else:
            stored = {}
        return weights.drawn(self.model, self.graph, self.dtype, seed, rank, stored) | stored


# Incompatible options ---------------------------------------------------------------------------

NEED_NUMBERS = ("weights", "group_by_length", "sync_batchnorm", "inject", "attention", "packing")
NEED_LAYERS = ("quantized", "lora", "frozen")
NEED_KERNELS = ("compile", "cuda_graphs")
NOT_RECORDED = (*NEED_NUMBERS, *NEED_LAYERS, "compile")
OF_RECOMPUTE = {"recompute_share": 1.0, "use_reentrant": False}
NEED_SAMPLES = ("samples_per_rank", "shuffle", "drop_last", "epochs")


def incompatible_options(workload: Workload) -> dict[str, str]:
    """Errors of keys of a workload that do not fit its model, by key."""
    model, dataset, compute = workload.model, workload.dataset, workload.compute
    idle = _schedule(workload)
    if not dataset.has_samples:
        idle = {key: _no_samples(key) for key in _given(workload, NEED_SAMPLES)} | idle
    if workload.quantized is not None and workload.weights is not None:
        idle |= {"weights": "weights in 4 bits have times but no numbers; leave this out."}
    if workload.recompute == "none":
        why = "recompute: none runs nothing again; leave this out, or set recompute: blocks."
        idle |= {key: why for key, usual in OF_RECOMPUTE.items() if getattr(workload, key) != usual}
    if compute.source != "roofline":
        # A profile may separate the host's time, which a CUDA graph reduces.
        held = NEED_KERNELS if compute.source != "profile" else ("compile",)
        idle |= {key: _no_kernels(compute.kind) for key in _given(workload, held)}
    if workload.host.async_launch and (compute.source != "roofline" or workload.cuda_graphs):
        why = f"compute: {compute.kind} includes" if compute.source != "roofline" else ""
        why = why or "a CUDA graph has none of"
        line = f"async_launch models the launches of single kernels; {why} these; leave it out."
        idle |= {"host": line}
    if compute.runs_eagerly and (workload.compile or model.recorded):
        why = "compile fuses these" if workload.compile else "a recording contains these"
        idle |= {"compute": f"kernels: torch adds the kernels of eager torch; {why}; leave it out."}
    if model.recorded:
        return idle | _recorded(workload)
    if not model.timed:
        return _without_times(workload) or idle
    why = f"the model {model.kind} has times but no numbers"
    numeric = _given(workload, NEED_NUMBERS + NEED_LAYERS)
    unsuitable = dict.fromkeys(numeric, f"{why}; leave this out.")
    if workload.loss.kind != "none":
        unsuitable |= {"loss": f"{why}; leave the loss out."}
    if getattr(dataset, "lengths", None) is not None:
        unsuitable |= {"dataset": f"{why}, independent of its samples' lengths; leave lengths out."}
    is_roofline, brings_times = compute.source == "roofline", getattr(model, "brings_times", False)
    if is_roofline or (compute.source == "measured" and brings_times):
        needs = "needs layers with FLOPs" if is_roofline else "spreads a step's time"
        line = f"{compute.kind} {needs}, but the model {model.kind} has times of its own; "
        unsuitable |= {"compute": f"{line}write profile, or leave this out."}
    return unsuitable | idle


def _given(workload: Workload, keys: Iterable[str]) -> list[str]:
    """Return the keys that are not empty."""
    return [key for key in keys if getattr(workload, key)]


def _recorded(workload: Workload) -> dict[str, str]:
    """Errors of keys that do not fit a model of recorded kernels."""
    why = f"the model {workload.model.kind} has kernels but no numbers"
    unsuitable = dict.fromkeys(_given(workload, NOT_RECORDED), f"{why}; leave this out.")
    if workload.loss.kind != "none":
        unsuitable |= {"loss": f"{why}, and its loss is among them; leave the loss out."}
    if workload.compute.source == "profile":
        unsuitable |= {"compute": f"{why}, nor times; write roofline, or measured."}
    if workload.dataset.kind != "none" or workload.dataset.has_samples:
        unsuitable |= {
            "dataset": f"{why}, of samples as they were recorded; leave the dataset out."
        }
    return unsuitable


def _without_times(workload: Workload) -> dict[str, str]:
    """Errors of keys that do not fit a model without times."""
    model, unsuitable = workload.model.kind, dict[str, str]()
    if workload.compute.source == "profile":
        line = f"the model {model} has no times of its own; write roofline, or a model of kind "
        unsuitable |= {"compute": f"{line}profile."}
    if workload.loss.kind == "none" and workload.dataset.kind != "none":
        line = f"the model {model} needs one for training; write for example mse."
        unsuitable |= {"loss": line}
    return unsuitable


def _schedule(workload: Workload) -> dict[str, str]:
    """Errors of the schedule in combination with the optimizer, scaling and dataset."""
    schedule, optimizer, unsuitable = workload.lr_schedule, workload.optimizer, dict[str, str]()
    if workload.lr_scaling != "none" and not schedule.takes_base:
        line = f"the schedule {schedule.kind} has rates of its own, independent of the optimizer's;"
        unsuitable |= {"lr_scaling": f"{line} scale those instead, and leave this out."}
    momentum = schedule.momentum(1)
    groups = [group.arguments for group in optimizer.param_groups or ()]
    treated = [optimizer, *(optimizer.model_copy(update=group) for group in groups)]
    if momentum is not None and any(variant.momentum_of() is None for variant in treated):
        line = f"{schedule.kind} changes the momentum, but the optimizer {optimizer.kind} has none;"
        advice = "write cycle_momentum: false, or momentum"
        unsuitable |= {
            "lr_schedule": f"{line} {advice}: {momentum:g} for an optimizer that has it."
        }
    if not workload.dataset.has_samples and "epoch" in schedule.counted():
        line = "per epoch: there is no dataset to iterate over; count steps."
        unsuitable |= {"lr_schedule": line}
    return unsuitable


def _no_kernels(compute: str) -> str:
    return f"the times of compute: {compute} include it already; write false, or compute: roofline."


def _no_samples(key: str) -> str:
    instead = "write steps" if key == "epochs" else "leave this out"
    return f"there is no dataset to iterate over; {instead}, or add a dataset."


# Inference ----------------------------------------------------------------------------------------

IDLE = {
    "lr_scaling": "none",
    "recompute": "none",
    **OF_RECOMPUTE,
    "keeps_outputs": True,
    "clip_grad_norm": None,
    "norm_type": 2.0,
    "clip_grad_value": None,
    "grad_accum": 1,
    "inject": (),
    "frozen": (),
    "lora": None,
    "quantized": None,
    "sync_batchnorm": False,
    "gradient_noise": False,
}
"""Keys that only training uses, and their defaults."""


def for_training_only(workload: Workload) -> dict[str, str]:
    """Errors of keys of a workload that inference would ignore, by key."""
    unused = [key for key in ("optimizer", "lr_schedule") if getattr(workload, key).kind != "none"]
    unused += [key for key, idle in IDLE.items() if getattr(workload, key) != idle]
    if any(getattr(workload.precision, name, None) for name in ScalerSettings._fields):
        unused.append("precision")
    return {key: f"mode: inference {_why(key)}; leave {_what(key)} out." for key in unused}


def _why(key: str) -> str:
    if key == "sync_batchnorm":
        return "normalises by running statistics, which all ranks have"
    if key == "precision":
        return "has no loss to scale"
    return "trains nothing"


def _what(key: str) -> str:
    return "the keys of the loss scale" if key == "precision" else "this"


# Checks that need files, shapes and parameter names ----------------------------------------------


def workload_problems(workload: Workload, base: Path) -> list[str]:
    """Check shapes and files of a valid workload; return one line per error, led by the key.

    ``base`` is the folder of relative paths.
    """
    problems = []
    try:
        workload = workload.settled(base)
    except ScenarioError as error:
        if workload.model.unread:  # its own file; for others the check of the dataset reports it
            return [f"model: {line}" for line in error.problems]
    for key, check in (
        ("model", _problem_with_model),
        ("quantized", _problem_with_quantized),
        ("lora", _problem_with_lora),
        ("frozen", _problem_with_frozen),
        ("weights", _problem_with_weights),
        ("optimizer.param_groups", _problem_with_groups),
        ("optimizer", _problem_with_shapes),
        ("dataset", _problem_with_dataset),
        ("shuffle", _problem_with_shuffle),
        ("group_by_length", _problem_with_grouping),
        ("packing", _problem_with_packing),
        ("sync_batchnorm", _problem_with_synchronising),
        ("attention", _problem_with_attention),
        ("compile", _problem_with_compiling),
        ("cuda_graphs", _problem_with_cuda_graphs),
    ):
        try:
            wrong = check(workload, base)
        except ScenarioError as error:
            wrong = joined(error.problems)
        if wrong:
            problems.append(f"{key}: {wrong}")
            if key == "model":  # the others need its shapes
                break
    return problems


def _problem_with_model(workload: Workload, base: Path) -> str | None:
    model = workload.model
    lacking = [name for name, shape in model.input_shapes().items() if shape is None]
    if lacking:
        return f"the shape of {lacking[0]} is not known; {model.how_to_give_shapes()}"
    try:
        model.shapes(model.known_shapes())
    except ShapeError as error:
        return f"the layers do not chain: {error}."
    if not model.ready_order():
        return "it has no trainable parameters; add a layer such as linear."
    return None


def _problem_with_quantized(workload: Workload, base: Path) -> str | None:
    if workload.quantized is None:
        return None
    from simdp.workload.layers.linear import Linear
    from simdp.workload.transforms import can_be_stored, stored_weights

    layers = [layer for layer in workload.model.graph.registered if isinstance(layer, Linear)]
    for target in workload.quantized.targets:
        if not any(can_be_stored(layer, [target]) for layer in layers):
            return _no_linear(target, [layer.name for layer in layers])
    learned = [n for n in stored_weights(workload.graph) if n not in workload.graph.frozen]
    if learned:
        return (
            f"{learned[0]} is trainable, but weights in 4 bits are frozen; list it in frozen, or "
            "add lora."
        )
    return None


def _problem_with_lora(workload: Workload, base: Path) -> str | None:
    if workload.lora is None:
        return None
    from simdp.workload.transforms import Adapted, is_target  # imports layers

    layers = [call.layer for call in workload.model.graph.calls]
    names = list(dict.fromkeys(layer.name for layer in layers if isinstance(layer, Adapted)))
    for target in workload.lora.targets:
        if not any(is_target(layer, [target]) for layer in layers):
            return _no_linear(target, names)
    return None


def _no_linear(target: str, names: list[str]) -> str:
    lead = f"targets: no linear layer is called {shown(target)}"
    return unknown_name("", target, names, lead=lead) if names else f"{lead}; the model has none."


def _problem_with_frozen(workload: Workload, base: Path) -> str | None:
    names = [parameter.name for parameter in workload.graph.parameters]
    for pattern in workload.frozen:
        if not matching([pattern], names):
            return unknown_name("", pattern, names, lead=f"no parameter matches {shown(pattern)}")
    if workload.frozen and not workload.graph.ready_order:
        return "every parameter matches, so that nothing is trained; leave some out."
    return None


def _problem_with_weights(workload: Workload, base: Path) -> str | None:
    if workload.weights is None:
        return None
    names = workload.model.file_names
    return weights.problem_with(base / workload.weights, workload.graph, names, workload.adapters)


def _problem_with_groups(workload: Workload, base: Path) -> str | None:
    idle = workload.optimizer.unmatched([p.name for p in workload.graph.parameters])
    if not idle:
        return None
    return f"no parameter matches {idle[0]!r}; --save-weights shows the names."


def _problem_with_shapes(workload: Workload, base: Path) -> str | None:
    shapes = {parameter.name: parameter.shape for parameter in workload.graph.parameters}
    for name in workload.graph.ready_order:
        wrong = workload.optimizer.for_parameter(name).problem_with(name, shapes[name])
        if wrong:
            return wrong
    return None


def _problem_with_dataset(workload: Workload, base: Path) -> str | None:
    dataset = workload.dataset
    if workload.model.timed:
        dataset.length(base)  # only its existence matters
        return None
    wrong = dataset.problem_with(workload.model, workload.loss, base)
    path = getattr(dataset, "path", None)
    return f"{base / path}: {wrong}" if wrong and path else wrong


def _problem_with_grouping(workload: Workload, base: Path) -> str | None:
    if not workload.group_by_length or workload.lengths(0, base):
        return None
    return (
        "all samples are of one length; give the dataset lengths, or the model a pad_id, or leave "
        "this out."
    )


def _problem_with_packing(workload: Workload, base: Path) -> str | None:
    packing, model = workload.packing, workload.model
    if packing is None or model.timed:
        return None
    if model.graph.inputs != ("x",) or model.target_follows != "x":
        return f"joins samples of language models, and {model.kind} is none here; leave this out."
    if workload.dataset.drawn_lengths(model, 0, base) is None:
        return "there are no lengths of samples to join; give the dataset lengths."
    if workload.group_by_length:
        return "packs are equally long already; leave this or group_by_length out."
    ((takes,),) = model.known_shapes()
    if packing.most(model) != takes:
        return f"packs have {packing.most(model)} tokens, but the model takes {takes}; change one."
    eager = any(
        call.layer.kind == "attention" and call.layer.costly != "fused_attention"
        for call in workload.graph.calls
    )
    if packing.strategy == "bfd" and eager:
        return (
            "eager attention does not keep the samples of a pack apart; write attention: flash, "
            "or strategy: wrapped."
        )
    return None


def _problem_with_synchronising(workload: Workload, base: Path) -> str | None:
    if not workload.sync_batchnorm or workload.graph.is_synchronised:
        return None
    return "the model has no batch norm; leave this out."


def _problem_with_attention(workload: Workload, base: Path) -> str | None:
    if workload.attention is None:
        return None
    from simdp.workload.transforms import has_kernels  # imports layers

    if any(has_kernels(call.layer) for call in workload.graph.calls):
        return None
    return "the model has no attention; leave this out."


def _problem_with_compiling(workload: Workload, base: Path) -> str | None:
    if not workload.compile:
        return None
    from simdp.workload.transforms import chains  # imports layers

    if chains(workload.graph):
        return None
    return "no block of the model has an elementwise call to fuse; leave this out."


def _problem_with_cuda_graphs(workload: Workload, base: Path) -> str | None:
    if not workload.cuda_graphs or not workload.lengths(0, base):
        return None
    return (
        "samples differ in length, but a graph has fixed shapes; leave this out, or give all "
        "samples one length."
    )


def _problem_with_shuffle(workload: Workload, base: Path) -> str | None:
    if isinstance(workload.shuffle, Permutation):
        read_permutation(base / workload.shuffle.path, workload.num_samples(base), 0)
    return None
