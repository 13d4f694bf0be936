"""Captions: names of models, clusters and scenarios."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from simdp.keys import short_key, written
from simdp.results.result import Result, Study

MAX_WIDTHS = 6  # widths of an mlp that are listed
# prefixes, suffixes and parts of options that do not change which preset a model is
FREE = ("sequence_length", "vocab_size", "classes", "labels", "image_size", "drop", "head")


def about(study: Study) -> str:
    """Write the settings that all points of a study share, for a picture of all of them.

    For example ``"bert-base · 4 × v100-sxm2-32gb, ring · ddp"``, without the swept keys.
    """
    return about_scenario(study.points[-1].scenario, study.points[0].set)


def about_point(result: Result) -> str:
    """Write the caption of one point, including the keys that it sets."""
    chosen = [f"{short_key(key)}: {written(value)}" for key, value in result.set.items()]
    about = about_scenario(result.scenario, result.set)
    return " · ".join(filter(None, [about, ", ".join(chosen)]))


def about_scenario(scenario: Mapping[str, Any], varied: Iterable[str]) -> str:
    """Write the caption of a scenario as given in a file, without the keys that vary."""
    keys = [*varied]
    cluster = scenario.get("cluster") or {}
    parts = [
        "" if _sets_model(keys) else model_name(scenario.get("workload") or {}),
        cluster_name(cluster, keys),
        "" if _sets(keys, "strategy", exactly=True) else _kind(scenario.get("strategy")),
    ]
    return " · ".join(filter(None, parts))


def _sets(keys: Iterable[str], key: str, exactly: bool = False) -> bool:
    """Return whether a key sets a part of a scenario; or, ``exactly``, its kind."""
    if exactly:
        return any(name in (key, f"{key}.kind") for name in keys)
    return any(name == key or name.startswith(f"{key}.") for name in keys)


def _sets_model(keys: Iterable[str]) -> bool:
    """Return whether a key changes the model; the length of its samples does not."""
    lead = "workload.model."
    return any(
        key == lead[:-1] or (key.startswith(lead) and not _is_free(key.removeprefix(lead)))
        for key in keys
    )


def model_name(workload: Mapping[str, Any]) -> str:
    """Name a scenario's model: its preset, or its kind, with the widths of an mlp.

    ``workload`` is as in a file, or as resolved, which has lost the preset's name.
    """
    model = workload.get("model")
    if not isinstance(model, Mapping):
        return str(model or "")
    kind = str(model.get("kind", ""))
    if kind == "mlp" and len(model.get("widths") or []) <= MAX_WIDTHS:
        return f"mlp {'-'.join(map(str, model.get('widths') or []))}"
    if kind == "parameters":
        return f"{int(model.get('num_params') or 0):,} parameters"
    if kind == "profile":
        return f"layers of {str(model.get('path', '')).rpartition('/')[2]}"
    return _preset_of(kind, model) or kind


def _preset_of(kind: str, model: Mapping[str, Any]) -> str:
    """Find the preset of a resolved model, ignoring options that depend on the data."""
    for name, known in _presets(kind):
        if all(_given(model.get(key, value)) == _given(value) for key, value in known.items()):
            return name
    return ""


@cache
def _presets(kind: str) -> list[tuple[str, Mapping[str, Any]]]:
    """List the presets of a kind, resolved, without options that depend on the data."""
    from simdp.workload.models import PRESETS, read_model

    presets = list[tuple[str, Mapping[str, Any]]]()
    for name in PRESETS.names():
        if PRESETS[name].get("kind") == kind:
            values = read_model(name).model_dump(mode="json")
            presets.append((name, {key: v for key, v in values.items() if not _is_free(key)}))
    return presets


def _given(value: Any) -> Any:
    """Drop the options that are None."""
    if not isinstance(value, Mapping):
        return value
    return {key: option for key, option in value.items() if option is not None}


def _is_free(key: str) -> bool:
    return any(key.startswith(part) or key.endswith(part) or part in key for part in FREE)


def cluster_name(cluster: Mapping[str, Any], varied: Iterable[str] = ()) -> str:
    """Name a cluster: ``"16 × h100-sxm5-80gb in 4 nodes, switch"``, without the keys that vary."""
    keys = [*varied]
    n, per_node = cluster.get("world_size") or 0, cluster.get("devices_per_node") or 0
    counted = bool(n) and not _sets(keys, "cluster.world_size")
    device = "" if _sets(keys, "cluster.device") else _device(cluster.get("device"))
    name = device or str(cluster.get("machine") or "")
    parts = [f"{n} × {name}" if name else f"{n} ranks"] if counted else [name] * bool(name)
    in_nodes = counted and 0 < per_node < n and not _sets(keys, "cluster.devices_per_node")
    if parts and in_nodes:
        parts[0] += f" in {n // per_node} nodes"
    if not _sets(keys, "cluster.topology"):
        parts += filter(None, [_kind(cluster.get("topology"))])
    return ", ".join(parts)


def _device(device: Any) -> str:
    if isinstance(device, list):
        return " and ".join(dict.fromkeys(filter(None, map(_device, device))))
    return str(device.get("name") or "") if isinstance(device, Mapping) else str(device or "")


def _kind(value: Any) -> str:
    """Name a kind that is written alone or with options."""
    return str(value.get("kind", "")) if isinstance(value, Mapping) else str(value or "")
