"""Spec, the frozen base of every value that is written in YAML, and the types of its fields.

Holds unknown keys with a hint, families of kinds (`one_of`), catalogue names (`from_catalogue`),
quantities with units, and pydantic's errors in one line each; no values of any scenario.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    ModelWrapValidatorHandler,
    PlainSerializer,
    PlainValidator,
    Strict,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema

from simdp.errors import (
    PRECISIONS,
    KindError,
    UnitError,
    choices,
    close_names,
    either,
    full_dtype,
    shown,
    unknown_name,
)
from simdp.family import Family
from simdp.units import (
    DIMENSIONS,
    NUMBER_PATTERN,
    format_percent,
    format_quantity,
    parse,
    parse_percent,
)

BATCH = (
    "workload.microbatch: 32 (samples per rank and micro-step) or workload.global_batch: 256 "
    "(samples of all ranks)"
)
WHOLE_BATCH = "workload.global_batch: 256 (samples of all ranks and micro-steps)"
ACCUMULATION = "workload.grad_accum: 4"
OPTIMIZER = "workload.optimizer: {kind: adamw, lr: 1e-3, weight_decay: 0.01}"
NUM_RANKS = "cluster.world_size: 8 (with cluster.devices_per_node where there are several nodes)"
RANKS_OF_A_NODE = "cluster.devices_per_node: 8"
NODES = "cluster.world_size: 16 (of all nodes) and cluster.devices_per_node: 8"
CLIP = "workload.clip_grad_norm: 1.0"
SCHEDULE = (
    "workload.lr_schedule: {kind: cosine_annealing_lr, T_max: 100} (or another of `list schedules`)"
)
METHOD = "strategy: ddp, fsdp, zero1, zero2 or zero3"
RECOMPUTE = "workload.recompute: blocks"
LOADER = "workload.input: {workers: 8, per_sample: 1 ms}"
FLASH = "workload.attention: flash"
EPOCHS, STEPS = "workload.epochs: 3", "workload.steps: 100"

OTHER_NAMES = {
    **dict.fromkeys(
        [
            *("batch_size", "per_device_train_batch_size", "per_device_batch_size"),
            *("micro_batch_size", "mini_batch_size", "train_micro_batch_size_per_gpu"),
        ],
        BATCH,
    ),
    **dict.fromkeys(["train_batch_size", "global_batch_size", "total_batch_size"], WHOLE_BATCH),
    **dict.fromkeys(
        [
            *("gradient_accumulation_steps", "accumulate_grad_batches", "accumulation_steps"),
            *("grad_accum_steps", "gradient_accumulation"),
        ],
        ACCUMULATION,
    ),
    **dict.fromkeys(["lr", "learning_rate", "weight_decay", "momentum", "optim"], OPTIMIZER),
    **dict.fromkeys(["num_gpus", "n_gpus", "gpus", "num_devices", "num_ranks"], NUM_RANKS),
    **dict.fromkeys(
        ["nproc_per_node", "gpus_per_node", "num_gpus_per_node", "devices"], RANKS_OF_A_NODE
    ),
    **dict.fromkeys(["nnodes", "num_nodes", "nodes"], NODES),
    **dict.fromkeys(["max_grad_norm", "gradient_clipping", "gradient_clip_val", "clip_grad"], CLIP),
    **dict.fromkeys(["scheduler", "lr_scheduler", "lr_scheduler_type", "warmup_steps"], SCHEDULE),
    **dict.fromkeys(
        ["zero_optimization", "zero_stage", "deepspeed", "fsdp", "ddp", "parallelism"], METHOD
    ),
    **dict.fromkeys(
        ["gradient_checkpointing", "activation_checkpointing", "checkpointing"], RECOMPUTE
    ),
    **dict.fromkeys(["num_workers", "dataloader_num_workers"], LOADER),
    **dict.fromkeys(["attn_implementation", "flash_attention", "use_flash_attention"], FLASH),
    **dict.fromkeys(["num_train_epochs", "num_epochs", "max_epochs"], EPOCHS),
    **dict.fromkeys(["max_steps", "num_steps", "total_steps", "train_iters"], STEPS),
    "fp16": "workload.precision: {kind: amp, dtype: float16}",
    "bf16": "workload.precision: {kind: amp, dtype: bfloat16}",
    "bucket_cap_mb": 'strategy.bucket_cap: "25 MiB"',
    "torch_compile": "workload.compile: true",
    "gpu": "cluster.device: h100-sxm5-80gb",
    "gpu_type": "cluster.device: h100-sxm5-80gb",
}
"""What keys of torch, Transformers, DeepSpeed and Lightning are here, with an example."""

NAMES_INSIDE = {
    "learning_rate": "lr",
    **dict.fromkeys(["num_workers", "dataloader_num_workers"], "workers"),
}
"""What some of them are called where the example's section is already being written."""

S = TypeVar("S", bound="Spec")
MAX_PLACES = 2  # places of a key without its section that are suggested
MAX_SHARED = 64  # members that are kept for equal values to come


def unknown_key(key: object, known: Sequence[str], spec: type[Spec]) -> str:
    """Report an unknown key, with simdp's key for another library's name, or the key's section."""
    here, advice = NAMES_INSIDE.get(str(key)), OTHER_NAMES.get(str(key))
    if advice == OPTIMIZER and "lr" in known and here is None:
        advice = None  # of an optimizer that has no such key, which needs no advice to write one
    places = [] if advice or here else [*dict.fromkeys(_places_in_sections(spec, str(key)))]
    if 0 < len(places) <= MAX_PLACES:
        advice = either(places)
    return unknown_name("key", key, known, hint=here if here in known else advice)


def _places_in_sections(spec: type[Spec], key: str) -> Iterator[str]:
    """Yield where the sections of a Spec have a key: ``workload.precision``; lists are left out."""
    for name, field in spec.model_fields.items():
        kind, members = field.annotation, list[Any]()
        for marker in field.metadata:
            members += marker.table.values() if isinstance(marker, one_of) else ()
        if any(key in member.model_fields for member in members):
            yield f"{name}.{key}"
        for section in [kind, *(get_args(kind) if get_origin(kind) is not list else ())]:
            is_section = isinstance(section, type) and issubclass(section, Spec) and not members
            if is_section and key in section.model_fields:
                yield f"{name}.{key}"


def _custom(kind: str, message: str) -> PydanticCustomError:
    return PydanticCustomError(kind, "{message}", {"message": message})


def problem(message: str) -> PydanticCustomError:
    """Make the error that a validator raises: its message is shown as it is."""
    return _custom("problem", message)


def _with_current_keys(
    data: Mapping[object, object], unknown: Sequence[object], known: Sequence[str]
) -> tuple[dict[Any, Any], list[InitErrorDetails]]:
    """Give old keys their current names; a key under both names is an error."""
    from simdp.keys import KEYS, advise_key

    data, errors = dict(data), []
    for (parent, old), new in KEYS.items():
        if old not in unknown or new not in known:
            continue
        value = data.pop(old)
        if new in data:
            message = f"{old} and {new} are the same key; keep {new}."
            errors.append(InitErrorDetails(type=problem(message), loc=(), input=value))
        else:
            advise_key(parent, old, new)
            data[new] = value
    return data, errors


class Spec(BaseModel):
    """Base of every value that is written in YAML: frozen, equal by value, strict about keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
        defer_build=True,  # a validator costs a millisecond, and a run needs few of them
    )

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_unknown_keys(cls, data: object, handler: ModelWrapValidatorHandler[S]) -> S:
        """Report unknown keys with a hint, together with every other problem of the value."""
        if not isinstance(data, Mapping) or cls.model_config.get("extra") != "forbid":
            return handler(data)
        if data.keys() <= cls.model_fields.keys():
            return handler(dict(data))
        known = list(cls.model_fields)
        unknown = [key for key in data if key not in known]
        data, errors = _with_current_keys(data, unknown, known)
        unknown = [key for key in data if key not in known]
        if not unknown and not errors:
            return handler(data)
        shown = [name for name in known if name != "kind"]
        errors += [
            InitErrorDetails(
                type=_custom("unknown_key", unknown_key(key, shown, cls)), loc=(), input=key
            )
            for key in unknown
        ]
        try:
            handler({key: value for key, value in data.items() if key in known})
        except ValidationError as error:
            errors += [
                InitErrorDetails(
                    type=_custom(detail["type"], say(detail)),
                    loc=detail["loc"],
                    input=detail["input"],
                )
                for detail in error.errors()
            ]
        raise ValidationError.from_exception_data(cls.__name__, errors)


def _plain(kind: str) -> str:
    """A normalised kind: BatchNorm2d, batch_norm2d and batch-norm2d are equal."""
    return re.sub(r"[-_ ]", "", kind).casefold()


class one_of:  # noqa: N801  reads as a word in annotations
    """A field that takes one member of a family: ``ring``, or ``{kind: ring, chunking: gloo}``.

    Parameters
    ----------
    family : str
        The family's name in error messages, for example ``"all_reduce"``.
    table : mapping of str to Spec class
        The family's members by kind; the folder's own table of registration.
    default : str, optional
        The kind of a mapping that names none, such as ``{overlap: false}``.
    presets : mapping of str to mapping, optional
        Names that abbreviate a kind with some of its keys; keys in the scenario have precedence.
    shared : bool
        Share one member among equal values, so that its cached values are computed once.
    by_key : bool
        Whether a mapping that names no kind is of the kind that one of its keys is called:
        ``{epochs: 90}`` is ``{kind: epochs, epochs: 90}``.

    A kind may be spelled as torch spells its classes: case, ``-`` and ``_`` do not matter. One that
    is none of these may come from outside; see `simdp.family`.
    """

    def __init__(
        self,
        family: str,
        table: Mapping[str, type[Spec]],
        default: str | None = None,
        presets: Mapping[str, Mapping[str, object]] | None = None,
        shared: bool = False,
        by_key: bool = False,
    ) -> None:
        self.family, self.table, self.default = family, table, default
        self.presets, self.shared, self.by_key = presets or {}, shared, by_key
        self._made: dict[str, Spec] = {}

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.with_info_plain_validator_function(
            self.validate,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value, info: value.model_dump(mode=info.mode, exclude_none=True),
                info_arg=True,
            ),
        )

    def validate(self, value: object, info: core_schema.ValidationInfo) -> Spec:
        """Make the member that a value names; the validators of the others are never built."""
        chosen = self.expand(value)
        kind = chosen.kind if isinstance(chosen, Spec) else chosen["kind"]  # type: ignore[attr-defined]
        member = self._find(str(kind))
        if member is None:
            raise problem(unknown_name(self.family, kind, self.known()))
        if not self.shared or isinstance(chosen, Spec):
            return member.model_validate(chosen, context=info.context)
        key = repr(chosen)
        if key not in self._made:
            if len(self._made) >= MAX_SHARED:
                self._made.clear()
            self._made[key] = member.model_validate(chosen, context=info.context)
        return self._made[key]

    def _find(self, kind: str) -> type[Spec] | None:
        """The class of a kind, possibly external; None if unknown."""
        if not isinstance(self.table, Family):
            return self.table.get(kind)
        try:
            member: type[Spec] | None = self.table.find(kind)
        except KindError as error:
            raise problem(f"the {self.family} {error}") from None
        return member

    def known(self) -> list[str]:
        """Every name that is allowed, those from outside too, sorted."""
        outside = self.table.offered() if isinstance(self.table, Family) else []
        return sorted({*self.table, *self.presets, *outside})

    def member(self, value: object) -> type[Spec] | None:
        """The class that a value names, as in a file or made; None where it names none."""
        if value is None and "none" not in self.table:  # no reason to look through packages
            return None
        try:
            chosen = self.expand(value)
        except PydanticCustomError:
            return None
        return type(chosen) if isinstance(chosen, Spec) else self._find(str(chosen["kind"]))

    def expand(self, value: object) -> Any:
        """Turn the short form ``ring`` into ``{kind: ring}`` and check the kind."""
        if isinstance(value, Spec):
            return value
        if value is None or value is False:  # `loss: none` may be read as a word or as nothing
            value = "none"
        if isinstance(value, str):
            value = {"kind": value}
        if isinstance(value, Mapping) and str(value.get("kind")) in self.table:
            return value
        if not isinstance(value, Mapping):
            raise problem(
                f"{shown(value)} is not a {self.family}{choices(self.known(), self.family)}"
            )
        kind = value.get("kind")
        named = [key for key in value if key in self.table] if self.by_key else []
        if kind is None and len(named) > 1:
            raise problem(f"{' and '.join(named)} are both given; keep one of them.")
        if kind is None and named:
            return {"kind": named[0], **value}
        if kind is None and self.default is None:
            raise problem(f"this {self.family} has no kind{choices(self.known(), self.family)}")
        if kind is None:
            return {"kind": self.default, **value}
        ours = {*self.table, *self.presets}
        spelled = {_plain(name): name for name in ours}.get(_plain(str(kind)))
        if spelled is None and self._find(str(kind)) is not None:
            return value
        if spelled is None:
            raise problem(unknown_name(self.family, kind, self.known()))
        if spelled not in self.table:
            preset = self.presets[spelled]
            return {**preset, **value, "kind": preset["kind"]}
        return {**value, "kind": spelled}


class from_catalogue:  # noqa: N801
    """A field that takes the name of a real part, or the part's figures written out.

    Parameters
    ----------
    family : str
        ``"device"`` or ``"link"``.
    names, read : callables
        List the catalogue's names, and read the entry of one name as a mapping.
    unknown : callable, optional
        Writes that a name is none of them, by default as `unknown_name`.
    """

    def __init__(
        self,
        family: str,
        names: Callable[[], list[str]],
        read: Callable[[str], Mapping[str, Any]],
        unknown: Callable[[str], str] | None = None,
    ) -> None:
        self.family, self.names, self.read, self.unknown = family, names, read, unknown

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self.expand, handler(source))

    def expand(self, value: object) -> Any:
        """Replace a catalogue name by its entry."""
        if not isinstance(value, str):
            return value
        if value not in self.names():
            unknown = self.unknown or partial(unknown_name, self.family, known=self.names())
            raise problem(unknown(value))
        return {"name": value, **self.read(value)}


@cache
def form_of(form: Any) -> TypeAdapter[Any]:
    """Validator of one of several forms of a value."""
    return TypeAdapter(form)


SMALLEST, LARGEST = 1e-30, 1e30
"""Quantities in SI units lie between these, or are 0, so that products of some stay floats."""


class Quantity:
    """A float field that is written with a unit and checked for its dimension.

    Parameters
    ----------
    dimension : str
        A key of `simdp.units.DIMENSIONS`.
    minimum : float
        The smallest value allowed.
    exclusive : bool
        Whether the minimum itself is refused.
    """

    def __init__(self, dimension: str, minimum: float = 0.0, exclusive: bool = False) -> None:
        self.dimension, self.minimum, self.exclusive = dimension, minimum, exclusive

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.validate,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: format_quantity(value, self.dimension)
            ),
        )

    def validate(self, text: object) -> float:
        """Parse the quantity and check its range."""
        try:
            value = parse(text, self.dimension)
        except UnitError as error:
            raise problem(str(error)) from None
        too_small = value <= self.minimum if self.exclusive else value < self.minimum
        if too_small or value == float("inf"):
            sign = ">" if self.exclusive else ">="
            least = format_quantity(self.minimum, self.dimension)
            raise problem(f"{text} is out of range; it must be {sign} {least} and finite.")
        if value and not SMALLEST <= value <= LARGEST:
            unit = DIMENSIONS[self.dimension].unit
            raise problem(
                f"{text} is out of range; it must lie between {SMALLEST:g} and {LARGEST:g} {unit}."
            )
        return value


MAX_INT = 2**53
"""Beyond this, floats do not tell a whole number from the next one."""


def _not_endless(value: int) -> int:
    if abs(value) > MAX_INT:
        raise problem(f"{shown(value)} is out of range; whole numbers end at {MAX_INT}.")
    return value


Int = Annotated[int, Strict(), AfterValidator(_not_endless)]
Float = Annotated[float, Strict()]  # takes whole numbers too, but no text and no true or false
Bool = Annotated[bool, Strict()]
Seconds = Annotated[float, Quantity("time")]
PositiveSeconds = Annotated[float, Quantity("time", exclusive=True)]
Bytes = Annotated[float, Quantity("data size")]
PositiveBytes = Annotated[float, Quantity("data size", exclusive=True)]
Bandwidth = Annotated[float, Quantity("bandwidth", exclusive=True)]
Flops = Annotated[float, Quantity("number of operations")]
FlopRate = Annotated[float, Quantity("compute rate", exclusive=True)]
Throughput = Annotated[float, Quantity("throughput", exclusive=True)]
Power = Annotated[float, Quantity("power")]
Price = Annotated[float, Quantity("price")]


def _share(text: object) -> float:
    try:
        return parse_percent(text)
    except UnitError as error:
        raise problem(str(error)) from None


Percent = Annotated[
    float,
    PlainValidator(_share),
    PlainSerializer(format_percent),
    WithJsonSchema(
        {"title": "share", "type": "string", "pattern": rf"^\s*{NUMBER_PATTERN}\s*%\s*$"}
    ),
]
"""Type of fields that hold a share: ``2 %`` in YAML, 0.02 inside."""


# Phrases ------------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """One thing that is wrong with a value."""

    place: tuple[str, ...]
    """The keys that lead to it."""
    line: str
    """Place, given value, allowed values."""
    unknown: str | None = None
    """The unknown key at that place, if that is the problem."""


def problems(error: ValidationError, raw: object) -> list[Problem]:
    """Format each of pydantic's errors in one line: place, given value, allowed values.

    Parameters
    ----------
    error : pydantic.ValidationError
        Exception of the validation.
    raw : object
        The validated value; it distinguishes a key from the tag of a union.

    Returns
    -------
    list of Problem
        With lines such as ``"cluster.link.bandwidth: 25 has no unit; write ..."``.
    """
    listed = []
    for detail in error.errors():
        place = _place(detail["loc"], raw)
        line = f"{'.'.join(place)}: {say(detail)}" if place else say(detail)
        unknown = str(detail["input"]) if detail["type"] == "unknown_key" else None
        listed.append(Problem(place, line, unknown))
    return listed


def _place(location: Sequence[int | str], raw: object) -> tuple[str, ...]:
    """Follow a location, leaving out the tags that a union adds to it."""
    parts: list[str] = []
    here = raw
    for step in location:
        if isinstance(here, Mapping):
            here = here.get(step)
        elif isinstance(here, list) and isinstance(step, int) and step < len(here):
            here = here[step]
        elif here == step or not re.fullmatch(r"\w+", str(step)):
            continue
        parts.append(str(step))
    return tuple(parts)


_PHRASES: dict[str, str] = {
    "missing": "is required but was not given; add it.",
    **dict.fromkeys(
        ["int_type", "int_parsing", "int_from_float"], "{given} is not a whole number."
    ),
    **dict.fromkeys(["float_type", "float_parsing"], "{given} is not a number."),
    "finite_number": "{given} is not a finite number.",
    **dict.fromkeys(["bool_type", "bool_parsing"], "{given} is not true or false."),
    "string_type": "{given} is not a text.",
    **dict.fromkeys(["list_type", "tuple_type"], "{given} is not a list."),
    "dict_type": "{given} is not a mapping of keys to values.",
    "model_type": "{given} is not a mapping of keys to values.",
    "model_attributes_type": "{given} is not a mapping of keys to values.",
    "greater_than": "{given} is out of range; it must be > {gt}.",
    "greater_than_equal": "{given} is out of range; it must be >= {ge}.",
    "less_than": "{given} is out of range; it must be < {lt}.",
    "less_than_equal": "{given} is out of range; it must be <= {le}.",
    "too_short": "{given} has too few entries; it needs at least {min_length}.",
}


_MISSING: dict[str | int, str] = {
    "dataset": "is required but was not given; add one, or write numerics: false at the top of "
    "the file, for times alone."
}
"""Keys that another one makes superfluous."""


def say(detail: ErrorDetails) -> str:
    """Phrase one of pydantic's errors."""
    context = dict(detail.get("ctx") or {})
    if "message" in context:
        return str(context["message"])
    kind, location, given = detail["type"], detail["loc"], shown(detail["input"])
    phrase = _PHRASES.get(kind)
    if kind == "missing":
        phrase = _MISSING.get(location[-1], phrase)
    if kind == "literal_error":
        return _not_allowed(detail["input"], str(context["expected"]), location)
    if phrase is None:
        return f"{given}: {detail['msg']}."
    return phrase.format_map({**context, "given": given})


def _not_allowed(value: object, expected: str, place: Sequence[int | str]) -> str:
    """Refuse a value that is none of a few, with the one that was probably meant."""
    known = re.findall(r"'([^']*)'", expected)
    dtype, close = full_dtype(str(value)), close_names(str(value), known)
    hint = either(map(repr, close))
    if place[-1:] == ("dtype",) and dtype in PRECISIONS and dtype not in known:
        hint = f"precision: {PRECISIONS[dtype]}"
    listed = f". Did you mean {hint}? Known: " if hint else "; known: "
    return f"{shown(value)} is not allowed{listed}{expected}."
