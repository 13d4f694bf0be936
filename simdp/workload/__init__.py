"""Workloads: model, data, loss, optimizer, and the batches of each rank and step."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
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
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails

from simdp.arrays import Array
from simdp.spec import Bool, Float, Int, form_of, problem
from simdp.workload import weights
from simdp.workload.compute import COMPUTE, AnyCompute, Host, Input
from simdp.workload.datasets import DATASET, AnyDataset, Dataset
from simdp.workload.faults import AnyFault
from simdp.workload.finetuning import Lora, Quantized
from simdp.workload.incompatible import for_training_only, misfits
from simdp.workload.layers.base import ModelGraph
from simdp.workload.losses import AnyLoss
from simdp.workload.models import MODEL, AnyModel, in_layers
from simdp.workload.optimizers import AnyOptimizer
from simdp.workload.precision import AnyPrecision, numpy_dtype
from simdp.workload.sampling import (
    Dealing,
    DropLast,
    Packing,
    Permutation,
    Rebalance,
    Shuffle,
    TorchShuffle,
)
from simdp.workload.schedules import AnySchedule
from simdp.workload.schedules.base import Progress

MicroSteps = Annotated[Int, Field(ge=1, le=10**6)]
Sizes = Annotated[list[Annotated[Int, Field(ge=1, le=10**9)]], Field(min_length=1)]

OF_GRAPH = {"attention", "frozen", "lora", "mode", "model", "quantized", "sync_batchnorm"}
OF_GRAPH |= {"dtype", "precision"}  # into which 4-bit weights are packed
"""Keys that the graph depends on."""

_MADE: deque[tuple[tuple[Any, ...], ModelGraph]] = deque(maxlen=8)  # with all that they depend on

__all__ = ["Workload"]


class Workload(Dealing):
    """What every rank does, apart from how they work together.

    Attributes
    ----------
    model : Model
        What is trained.
    weights : str or None
        A file with the parameters before the first step, relative to the scenario file: npz,
        safetensors, or the index of several safetensors files, ``model.safetensors.index.json``;
        by default they are those of a torch script after ``torch.manual_seed(seed)``.
    dataset : Dataset
        ``none`` by default where the model has times but no numbers, or where compute is measured,
        and else required.
    loss : Loss
        By default mse, or cross_entropy for a data set of classes; ``none`` without numbers.
    optimizer : Optimizer
        How gradients change the parameters.
    lr_schedule : Schedule
        The learning rate lr(k) of step k = 1, 2, ..., or with ``per: epoch`` of epoch k.
    lr_scaling : {"none", "linear", "sqrt"}
        Multiply the optimizer's learning rate, before the schedule, by world_size or its square
        root.
    recompute : {"none", "blocks", "selective", "selective_every_other"}
        Which activations are not kept for backward but computed again there, block by block, as
        with torch.utils.checkpoint: all; all but outputs of matrix products and of fused attention;
        or of these but every second product's.
    compile : bool
        Whether the model's blocks are compiled, as by torch.compile: elementwise calls between
        products run as one kernel, and keep less for backward. Numbers stay as they are.
    cuda_graphs : bool
        Whether a micro-step is replayed as a CUDA graph: one launch in place of one for each kernel
        of the model and the optimizer.
    attention : {"eager", "flash"} or None
        How attention runs: kernel by kernel, with all weights in memory; or in one kernel each way,
        whose memory does not grow with the square of the length, as torch's
        scaled_dot_product_attention takes them: its flash kernel, or with padding, or in 32 bits,
        the memory-efficient one. The numbers are the same. By default as the model's library does:
        flash for llama, mistral, qwen2, mpt, gpt_neox and vit, eager for the others.
    clip_grad_norm : float or None
        Largest norm of the averaged gradient, as torch.nn.utils.clip_grad_norm_.
    norm_type : float or "inf"
        Which norm that is, as the argument of clip_grad_norm_: p of the p-norm, or the largest
        magnitude. The metric ``grad_norm`` is the same norm.
    clip_grad_value : float or None
        Largest absolute value of any element of it, as torch.nn.utils.clip_grad_value_.
    microbatch : int or None
        Samples per rank and micro-step; required, unless one of the next two gives them.
    global_batch : int or None
        Samples of all ranks per step, in place of ``microbatch``.
    grad_accum : int or list of int
        Micro-steps per step; a list gives their sizes per rank.
    samples_per_rank : list of int or None
        Samples of each rank per epoch, in place of the DistributedSampler's equal parts.
    rebalance : Rebalance or None
        Cut each global batch by how fast the ranks are, in place of equal pieces.
    group_by_length : bool
        Bring samples of similar length together; for padded data.
    packing : Packing or None
        Join samples of a language model to packs, which take their place: ``true``, or how long
        packs are. A micro-batch of packs is one row without padding. For times alone.
    sync_batchnorm : bool
        Make every batch norm a SyncBatchNorm, as torch's convert_sync_batchnorm.
    dtype : {"float32", "float64"}
        Of parameters and compute.
    precision : Precision
        What runs in 16 bit.
    shuffle : bool, Permutation or TorchShuffle
        Whether each epoch has an order of its own: drawn, from a file, or as torch's samplers draw.
    drop_last : bool or DropLast
        Whether what does not fill every rank, or a whole step, is left out of an epoch; or, with
        ``{sampler: true, loader: false}``, as torch's sampler and loader do each.
    inject : list of Fault
        What is put into gradients, and when.
    quantized : Quantized or None
        Frozen weights that are stored in 4 bits. There are times then, but no numbers.
    lora : Lora or None
        Adapters beside some linear layers; then they alone learn.
    frozen : tuple of str
        Patterns, as in an optimizer's groups, of parameters that nobody changes, as with
        ``requires_grad_(False)``: they get no gradient, and no state of the optimizer. Backward
        goes only as far as something is learned.
    unused : dict of int to tuple of str
        Parameters that a rank's loss does not depend on, by rank: there they are constants, which
        get no gradient. What backward would save by it is not counted.
    gradient_noise : bool
        Whether the noise of gradients is measured, by those of single ranks beside their mean, and
        with it the batch from which on larger ones cost more samples than they save steps.
    compute : Compute
        Where times come from: the devices' figures, measured steps, or a model that brings its own.
    host : Host
        What the host costs its device.
    input : Input or None
        How batches come to the devices; without it they are there.
    epochs, steps : int or None
        How long to train; one epoch if neither is given. Without a data set two steps, the first
        of which is warm-up; with an input one for each worker and the one to warm up.
    mode : {"training", "inference"}
        Whether ranks learn, or only compute outputs: then the model is as after torch's ``eval()``,
        the loss tells no more than what the data set's targets look like, and keys that only
        training reads are refused.
    """

    # For editors: the others follow from the model and its data, where they are not written.
    model_config = ConfigDict(json_schema_extra={"required": ["model"]})

    mode: Literal["training", "inference"] = "training"
    model: AnyModel
    weights: str | None = None
    dataset: AnyDataset
    loss: AnyLoss
    optimizer: AnyOptimizer = Field("sgd", validate_default=True)
    lr_schedule: AnySchedule = Field("none", validate_default=True)
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    recompute: Literal["none", "blocks", "selective", "selective_every_other"] = "none"
    compile: Bool = False
    cuda_graphs: Bool = False
    attention: Literal["eager", "flash"] | None = None
    clip_grad_norm: Float | None = Field(None, gt=0)
    norm_type: Annotated[Float, Field(gt=0)] | Literal["inf"] = 2.0
    clip_grad_value: Float | None = Field(None, gt=0)
    microbatch: Int | None = Field(None, ge=1, le=10**9)
    global_batch: Int | None = Field(None, ge=1, le=10**9)
    grad_accum: MicroSteps | Sizes = 1
    samples_per_rank: Sizes | None = None
    rebalance: Rebalance | None = None
    group_by_length: Bool = False
    packing: Packing | None = None
    sync_batchnorm: Bool = False
    dtype: Literal["float32", "float64"] = "float32"
    precision: AnyPrecision = Field("full", validate_default=True)
    shuffle: Shuffle = False
    drop_last: Bool | DropLast = False
    inject: tuple[AnyFault, ...] = ()
    quantized: Quantized | None = None
    lora: Lora | None = None
    frozen: tuple[str, ...] = ()
    unused: dict[int, tuple[str, ...]] = Field(default_factory=dict)
    gradient_noise: Bool = False
    compute: AnyCompute = Field("roofline", validate_default=True)
    host: Host = Host()
    input: Input | None = None
    epochs: Int | None = Field(None, ge=1, le=10**9)
    steps: Int | None = Field(None, ge=1, le=10**9)

    @model_validator(mode="before")
    @classmethod
    def _what_others_imply(cls, data: Any, info: ValidationInfo) -> Any:
        """Fill in what follows from the model and the data set, where it is not written."""
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
            data = {**data, "loss": kind.loss_of(data.get("dataset"), base)}
        return data

    @field_validator("packing", mode="before")
    @classmethod
    def _yes_no_or_how(cls, value: Any) -> Any:
        return {True: {}, False: None}[value] if isinstance(value, bool) else value

    @field_validator("shuffle", mode="wrap")
    @classmethod
    def _yes_no_a_file_or_torchs(cls, value: Any, handler: Any) -> Any:
        """Choose the form by the value, so that an error speaks of the form that was written."""
        form: Any = Bool
        if isinstance(value, dict | Permutation | TorchShuffle):
            torch = isinstance(value, TorchShuffle) or (
                isinstance(value, dict) and "torch" in value
            )
            form = TorchShuffle if torch else Permutation
        return form_of(form).validate_python(value)

    @field_validator("grad_accum", mode="wrap")
    @classmethod
    def _number_or_sizes(cls, value: Any, handler: Any) -> Any:
        """As for ``shuffle``."""
        form: Any = Sizes if isinstance(value, list) else MicroSteps
        return form_of(form).validate_python(value)

    @model_validator(mode="after")
    def _parts_suit_each_other(self) -> Workload:
        wrong = misfits(dict(self))
        if self.mode == "inference":
            wrong = for_training_only(dict(self)) | wrong
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
        if self.rebalance is not None and self.compute.kind == "profile":
            raise problem(
                "rebalance moves samples, but compute: profile takes as long with few as with "
                "many; leave it out, or use a model with layers."
            )
        wrong = self.precision.problem_with(self.dtype)
        if wrong:
            raise problem(wrong)
        return self

    def settled(self, base: Path) -> Self:
        """The same workload with what files tell of the model: its layers, a sample's shapes.

        Raises
        ------
        ScenarioError
            If the data cannot be read.
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

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As pydantic's; the graph is made anew where it may be another one."""
        copied = super().model_copy(update=update, deep=deep)
        if not OF_GRAPH.isdisjoint(update or ()):
            copied.__dict__.pop("graph", None)
        return copied

    @cached_property
    def graph(self) -> ModelGraph:
        """The model's graph, with adapters, what is frozen, attention and batch norms as asked for.

        In inference it is that of the model after training.
        """
        of = tuple(getattr(self, key) for key in sorted(OF_GRAPH))
        for other, graph in _MADE:
            if other == of:
                return graph
        _MADE.append((of, self._graph()))
        return _MADE[-1][1]

    def _graph(self) -> ModelGraph:
        graph = self.model.graph
        if self.quantized is not None:
            from simdp.workload.transforms import in_4_bits  # brings the layers along

            stored = numpy_dtype(self.precision.weight_dtype(self.dtype)).itemsize
            graph = in_4_bits(graph, self.quantized, stored)
        if self.lora is not None:
            from simdp.workload.transforms import adapted  # brings the layers along

            graph = adapted(graph, self.lora)
        if self.frozen:
            from simdp.workload.finetuning import with_frozen

            graph = with_frozen(graph, self.frozen)
        if self.attention is not None:
            from simdp.workload.transforms import in_kernels  # brings the layers along

            graph = in_kernels(graph, self.attention)
        if self.mode == "inference":
            from simdp.workload.transforms import evaluated  # brings the layers along

            return evaluated(graph)
        if not self.sync_batchnorm:
            return graph
        from simdp.workload.transforms import synchronised  # brings the layers along

        return synchronised(graph)

    @property
    def adapters(self) -> frozenset[str]:
        """Parameters that the model has not had without `lora`."""
        if self.lora is None:
            return frozenset()
        own = {parameter.name for parameter in self.model.graph.parameters}
        return frozenset(p.name for p in self.graph.parameters if p.name not in own)

    @property
    def itemsize(self) -> int:
        """Bytes per element of parameters and of what is computed in full precision."""
        return np.dtype(self.dtype).itemsize

    @property
    def gradient_itemsize(self) -> int:
        """Bytes per element of a gradient that is sent."""
        return numpy_dtype(self.precision.gradient_dtype(self.dtype)).itemsize

    def learning_rate(self, base: float, progress: Progress, world_size: int) -> float:
        """Learning rate of a step, for parameters whose own is ``base``.

        The base is scaled, as in a script that multiplies what it gives its optimizer; rates that
        the schedule names, such as ``eta_min``, stay.
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
            found = weights.loaded(path, self.graph, self.dtype, names, self.adapters)
        else:
            found = {}
        fresh = weights.drawn(self.model, self.graph, self.dtype, seed, rank, found)
        return fresh | found
