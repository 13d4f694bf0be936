"""Variants of a scenario: changed values, fewer steps, remedies for stragglers; ranges of sizes."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from simdp.cluster import MAX_WORLD_SIZE, Cluster
from simdp.cluster.stragglers import DegradedLink, Straggler
from simdp.collectives.costs import Cost
from simdp.collectives.costs.nccl import NcclCost
from simdp.errors import ScenarioError, UnitError
from simdp.keys import written
from simdp.results.collective import MAX_NBYTES
from simdp.scenario.loading import unsuited
from simdp.scenario.overrides import Raw, set_key
from simdp.scenario.root import Scenario, following
from simdp.spec import Spec, problems
from simdp.strategies import STRATEGIES
from simdp.units import format_quantity, parse

# Values -------------------------------------------------------------------------------------------

S = TypeVar("S", bound=Spec)


def with_values(
    scenario: Scenario, raw: Raw, values: Mapping[str, object], where: str = ""
) -> Scenario:
    """Set keys of a valid scenario, ``raw`` as resolved, to values as in YAML.

    ``where``, the source of the values, leads errors: a ScenarioError if a key does not exist, or
    its value is invalid.
    """
    try:
        made = _changed_sections(scenario, raw, values)
    except ScenarioError as error:
        if not where:
            raise
        raise ScenarioError([f"{where}: {line}" for line in error.problems]) from None
    return scenario.model_copy(update=made)


COST = "collectives.cost"
"""A part that is validated separately: no other key of its section depends on it."""


def _changed_sections(scenario: Scenario, raw: Raw, values: Mapping[str, object]) -> dict[str, Any]:
    """Validate the sections that hold the changed keys."""
    inside = [key for key in values if key.startswith(f"{COST}.") and key != f"{COST}.kind"]
    made = _changed_cost(scenario, raw, {key: values[key] for key in inside}) if inside else {}
    sections: dict[str, Any] = {}
    for key, value in values.items():
        if key in inside:
            continue
        section = key.split(".")[0]
        part = sections.setdefault(section, {section: copy.deepcopy(raw.get(section))})
        set_key(part, key, value)
    for section, part in sections.items():
        old = getattr(scenario, section, None)
        if old is None or not hasattr(old, "model_validate"):
            hint = "give a key of cluster, workload, ..."
            raise ScenarioError(f"{section}: has no constants; {hint}")
        if section in made:  # its cost changes as well
            part[section] |= {"cost": made[section].cost.model_dump(mode="json", exclude_none=True)}
        member: Any = type(old)
        if section == "strategy":  # the only section whose kind may change
            member = STRATEGIES.find(str(part[section].get("kind"))) or member
        try:
            new = member.model_validate(part[section], context={"base": scenario.base})
        except ValidationError as error:
            lines = [f"{section}.{problem.line}" for problem in problems(error, part[section])]
            raise ScenarioError(lines) from None
        made[section] = new.settled(scenario.base) if hasattr(new, "settled") else new
    return made


def _changed_cost(scenario: Scenario, raw: Raw, values: Mapping[str, object]) -> dict[str, Any]:
    """Validate a changed cost, and put it into the section of collectives."""
    written, old = copy.deepcopy(raw["collectives"]["cost"]), scenario.collectives
    for key, value in values.items():
        set_key({"collectives": {"cost": written}}, key, value)
    if isinstance(old.cost, NcclCost):  # reads no file
        cost: Cost = _nccl_cost(type(old.cost), json.dumps(written))
    else:
        cost = _cost(type(old.cost), written, scenario.base)
    return {"collectives": old.model_copy(update={"cost": cost})}


@lru_cache(maxsize=512)
def _nccl_cost(kind: type[Cost], written: str) -> Cost:
    """Cache a cost by its JSON, since points of a sweep share it."""
    return _cost(kind, json.loads(written), Path())


def _cost(kind: type[Cost], written: object, base: Path) -> Cost:
    try:
        made: Cost = kind.model_validate(written, context={"base": base})
    except ValidationError as error:
        lines = [
            f"{COST}{'.' if problem.place else ': '}{problem.line}"
            for problem in problems(error, written)
        ]
        raise ScenarioError(lines) from None
    return made.settled(base)


def value_at(here: object, key: str) -> Any:
    """Find the value at a dotted key of a scenario or plain data; None if there is none.

    A mapping with equal values, as the hops of all protocols, counts as that value.
    """
    for part in key.split("."):
        if isinstance(here, list | tuple):
            here = here[int(part)] if part.isdecimal() and int(part) < len(here) else None
        else:
            here = _inside(here).get(part)
    values = list(_inside(here).values())
    return values[0] if values and all(value == values[0] for value in values) else here


def _inside(value: object) -> Mapping[str, Any]:
    """Keys of a mapping or of a spec; anything else has none."""
    if isinstance(value, Spec):
        return dict(value)
    return value if isinstance(value, Mapping) else {}


def with_numbers(spec: S, values: Mapping[str, float]) -> S:
    """Set numbers, in SI units by dotted key, of a valid spec, without validation.

    A value for a spec inside it, as a hop for all protocols, is set at each of its keys.
    """
    inside: dict[str, dict[str, float]] = {}
    for key, value in values.items():
        first, _, rest = key.partition(".")
        inside.setdefault(first, {})[rest] = value
    update = {key: _numbers(getattr(spec, key), below) for key, below in inside.items()}
    forgets = isinstance(spec, Scenario | Cluster)
    if forgets:  # drops their cached values
        return spec.model_copy(update=update)
    made: Any = type(spec).model_construct(spec.model_fields_set, **{**dict(spec), **update})
    spec_with_numbers: S = made
    return spec_with_numbers


def _numbers(old: object, values: Mapping[str, float]) -> Any:
    if isinstance(old, list | tuple):
        made = [
            _numbers(member, below) if (below := _below(values, str(index))) else member
            for index, member in enumerate(old)
        ]
        return type(old)(made)
    if not isinstance(old, Spec):
        return values[""]
    whole = values.get("")
    return with_numbers(old, dict(values) if whole is None else dict.fromkeys(dict(old), whole))


def _below(values: Mapping[str, float], part: str) -> dict[str, float]:
    """Values of the keys that begin with a part, without that part."""
    return {
        rest: value
        for key, value in values.items()
        for first, _, rest in [key.partition(".")]
        if first == part
    }


def timed_only(scenario: Scenario, **cluster: object) -> Scenario:
    """The same run, timing only, with changes to the cluster."""
    changed: dict[str, Any] = {"numerics": False}
    if cluster:
        changed["cluster"] = scenario.cluster.model_copy(update=cluster)
    return scenario.model_copy(update=changed)


def variant(scenario: Scenario, settings: Mapping[str, object], steps: int) -> Scenario | None:
    """Shorten one point and change some settings, timing only; None where these are invalid.

    The sweep, measurements and injections are left out.
    """
    short = shortened(scenario, steps)
    return None if short is None else with_settings(short, short.resolved(), settings)


def shortened(scenario: Scenario, steps: int) -> Scenario | None:
    """Shorten one point to a few steps, timing only; None where these are too few."""
    workload = scenario.workload.model_copy(update={"epochs": None, "inject": ()})
    bare = scenario.model_copy(
        update={"workload": workload, "numerics": False, "sweep": {}, "measured": None}
    )
    try:
        return with_values(bare, bare.resolved(), {"workload.steps": steps})
    except ScenarioError:
        return None


def with_settings(short: Scenario, raw: Raw, settings: Mapping[str, object]) -> Scenario | None:
    """Change settings of a shortened scenario, ``raw`` as resolved; None where they are invalid.

    Only the sections that change are validated.
    """
    try:
        changed = following(with_values(short, raw, settings), short.base)
    except ScenarioError:
        return None
    return None if unsuited(changed) else changed


MOST_NODES = 3  # largest number of nodes to leave out, one at a time
MEASURED_STEPS = 1  # steps between rebalancings


class VariantChange(NamedTuple):
    """A change to try: a setting, further ones (``beside``), and a side effect in words (``but``).

    ``family`` is its kind; ``title`` its words, by default the setting.
    """

    family: str
    key: str
    value: Any
    but: str = ""
    beside: Mapping[str, Any] = {}
    title: str = ""

    def settings(self) -> dict[str, Any]:
        """All settings by dotted key."""
        return {self.key: self.value, **self.beside}

    def in_words(self) -> str:
        """Title and side effect."""
        but = f" ({self.but})" if self.but else ""
        return f"{self.title or f'{self.key}: {written(self.value)}'}{but}"


def around_stragglers(scenario: Scenario) -> Iterator[VariantChange]:
    """Yield changes that may help against a scenario's stragglers."""
    cluster, workload = scenario.cluster, scenario.workload
    if not cluster.stragglers:
        return
    yield from evictions(scenario)
    ring = scenario.collectives.all_reduce
    if ring.kind == "ring" and not scenario.collectives.cost_of("all_reduce").timed:
        pairs = [
            list(straggler.link)
            for straggler in cluster.stragglers
            if isinstance(straggler, DegradedLink) and straggler.link is not None
        ]
        met = [pair for pair in pairs if tuple(pair) not in ring.avoid]  # type: ignore[attr-defined]
        if met:
            kept = [list(pair) for pair in ring.avoid]  # type: ignore[attr-defined]
            yield VariantChange("avoid", "collectives.all_reduce.avoid", kept + met)
    weighs = scenario.strategy.weighs_by_shard
    if workload.global_batch is not None and workload.rebalance is None and weighs is not None:
        rule = {"every": MEASURED_STEPS}
        beside = {} if weighs else {"strategy.weight_by_shard": True}
        but = "" if weighs else "with strategy.weight_by_shard: true"
        yield VariantChange("rebalance", "workload.rebalance", rule, but, beside)


def evictions(scenario: Scenario) -> Iterator[VariantChange]:
    """Yield changes that leave out a node with a straggler, where there are several nodes."""
    cluster = scenario.cluster
    if cluster.num_nodes < 2:
        return
    m, raw = cluster.local_size, scenario.resolved()["cluster"]
    nodes = dict.fromkeys(node for s in cluster.stragglers for node in _nodes_of(s, cluster))
    for node in list(nodes)[:MOST_NODES]:
        beside: dict[str, Any] = {"cluster.stragglers": _without(raw["stragglers"], node, m)}
        for key, count in (("topology", 1), ("link", 1), ("device", m), ("inter_node.link", 1)):
            listed = value_at(raw, key)
            if isinstance(listed, list):
                beside[f"cluster.{key}"] = listed[: node * count] + listed[(node + 1) * count :]
        left = cluster.world_size - m
        title, but = f"without node {node}", f"{left} ranks"
        yield VariantChange("evict", "cluster.world_size", left, but, beside, title)


def _nodes_of(straggler: Straggler, cluster: Cluster) -> list[int]:
    """The node of a straggler, or both ends of a link; empty where it affects all."""
    m, rank, node = cluster.local_size, straggler.on_rank(), straggler.on_node()
    if isinstance(straggler, DegradedLink) and straggler.link is not None:
        nodes = [rank // m for rank in straggler.link]
    elif rank is not None:
        nodes = [rank // m]
    else:
        nodes = [] if node is None else [node]
    return [node for node in nodes if node < cluster.num_nodes]


def _without(stragglers: list[Raw], node: int, per_node: int) -> list[Raw]:
    """Stragglers without those of a node; ranks and nodes behind it move up."""

    def is_there(straggler: Raw) -> bool:
        ranks = (straggler.get("rank"), *(straggler.get("link") or ()))
        nodes = (straggler.get("node"), *(rank // per_node for rank in ranks if rank is not None))
        return node in nodes

    def moved(rank: int) -> int:
        return rank - per_node * (rank // per_node > node)

    moves: dict[str, Callable[[Any], object]] = {
        "node": lambda place: place - (place > node),
        "rank": moved,
        "link": lambda ranks: [moved(rank) for rank in ranks],
    }

    def changed(key: str, value: object) -> object:
        return value if value is None or key not in moves else moves[key](value)

    return [
        {key: changed(key, value) for key, value in straggler.items()}
        for straggler in stragglers
        if not is_there(straggler)
    ]


# Ranges -------------------------------------------------------------------------------------------


def parse_sizes(text: str) -> list[int]:
    """Read sizes [bytes]: ``"25 MB"``, ``"1KiB:1GiB"`` by doubling, or ``"1KiB:1GiB:4"``.

    ``1K``, ``1M`` and ``1G`` are KiB, MiB and GiB, as in nccl-tests. The last size is included only
    if the factor hits it. A ScenarioError if a size has no unit or is invalid, or the range is
    reversed.
    """
    parts = text.split(":")
    if len(parts) > 3 or re.search(r",|[^\WeE]\s*(-|\.\.)\s*\d", text):
        raise _wrong_size(text, "is not FIRST:LAST[:FACTOR]; write for example 1KiB:1GiB:2.")
    first, last = _size(text, parts[0]), _size(text, parts[min(1, len(parts) - 1)])
    if last < first:
        raise _wrong_size(
            text, f"is reversed; write {parts[1].strip()}:{parts[0].strip()} for rising sizes."
        )
    factor = parts[2].strip() if len(parts) == 3 else "2"
    if not (factor.isascii() and factor.isdecimal()) or int(factor) < 2:
        raise _wrong_size(text, f"has the factor {factor!r}; give a whole number of 2 or more.")
    sizes = [first]
    while sizes[-1] * int(factor) <= last:
        sizes.append(sizes[-1] * int(factor))
    return sizes


def _size(whole: str, text: str) -> int:
    try:
        value = parse(re.sub(r"(?<=\d)\s*([KMG])$", r" \1iB", text.strip()), "data size")
    except UnitError as error:
        raise _wrong_size(whole, str(error)) from None
    if not 1 <= value <= MAX_NBYTES:
        most = format_quantity(MAX_NBYTES, "data size")
        raise _wrong_size(whole, f"{text.strip()} is out of range; give 1 B ... {most}.")
    if value != int(value):
        raise _wrong_size(whole, f"{text.strip()} is not a whole number of bytes; round it.")
    return int(value)


def _wrong_size(text: str, why: str) -> ScenarioError:
    return ScenarioError(f"--sizes {text}: {why}")


def parse_world_sizes(text: str) -> list[int]:
    """Read ascending world sizes: ``"8"``, ``"2,4,8"``, or ``"2:64"`` by doubling.

    The end of a range is included only if doubling hits it. A ScenarioError if they are not whole
    numbers from 1 on, or do not ascend.
    """
    doubling = ":" in text
    try:
        values = [int(part) for part in text.split(":" if doubling else ",")]
    except ValueError:
        values = []
    if not values or (doubling and len(values) != 2):
        raise _wrong_world_size(text, "is not 8, 2,4,8 or 2:64.")
    for value in values:
        if not 1 <= value <= MAX_WORLD_SIZE:
            raise _wrong_world_size(text, f"{value} is out of range; give 1 ... {MAX_WORLD_SIZE}.")
    if values != sorted(values) or len({*values}) < len(values):
        raise _wrong_world_size(text, "does not rise; write each once, the smallest first.")
    if not doubling:
        return values
    first, last = values
    return [first << k for k in range((last // first).bit_length())]


def _wrong_world_size(text: str, why: str) -> ScenarioError:
    return ScenarioError(f"--world-size {text}: {why}")


def parse_counts(option: str, text: str) -> list[int]:
    """Read whole numbers of 1 or more: ``"1,2,8"``; else a ScenarioError led by ``option``."""
    counts = [part.strip() for part in text.split(",")]
    wrong = [part for part in counts if not (part.isascii() and part.isdecimal() and int(part))]
    if wrong:
        raise ScenarioError(
            f"{option} {text}: {wrong[0]!r} is not a whole number of 1 or more; write 1,2,8."
        )
    return [int(part) for part in counts]
