"""Cases of the fuzzer: a command on a changed scenario, or on a file that was damaged."""

import json
import shutil
from functools import cache
from pathlib import Path

import yaml
from fuzz.border import outcome
from fuzz.damage import damaged, mutated, odd_value, other_archive, places

ROOT = Path(__file__).parents[2]

LEFT_OUT = ("16384_gpus", "resnet_small")
"""Teaching scenarios whose valid neighbours take long by right."""

SMALL = {
    "cluster": {"world_size": 2, "device": "a100-sxm4-80gb", "topology": "ring", "link": "nvlink3"},
    "workload": {
        "model": {"kind": "mlp", "widths": [4, 3]},
        "dataset": {"kind": "regression", "num_samples": 32},
        "microbatch": 4,
        "steps": 2,
    },
}

MATRIX = {"kind": "nvidia_smi", "path": "topo.txt", "pcie": "pcie3-x16"}
CUBE = {**SMALL["cluster"], "world_size": 8, "topology": {**MATRIX, "p2p_level": "sys"}}
EXCHANGE = {"all_reduce": {"kind": "msccl", "path": "algorithm.xml"}}
DIFFERENT = {
    "csv": {"workload": {"model": {"kind": "profile", "path": "layers.csv"}, "microbatch": 8}},
    "topology": {"cluster": CUBE},
    "xml": {"cluster": {**SMALL["cluster"], "world_size": 4}, "collectives": EXCHANGE},
    "on": {"cluster": {"machine": "./machine.yaml", "world_size": 4}, "numerics": False},
}
QUIET = ("--no-plots", "--quiet", "--out", "out")


@cache
def scenarios():
    """Every teaching scenario, and some that were measured, as plain data."""
    paths = sorted((ROOT / "scenarios").glob("*.yaml"))
    paths += sorted((ROOT / "scenarios" / "validation").glob("*/*.yaml"))[::8]
    paths = [path for path in paths if path.stem not in LEFT_OUT]
    texts = [path.read_text() for path in paths if path.stat().st_size < 6000]
    return [(text, yaml.safe_load(text)) for text in texts]


def prepare(folder):
    """Put the files that cases damage into a folder, whole; the working folder is that one."""
    data = ROOT / "scenarios" / "data"
    shutil.copytree(data, folder / "data")
    for name, path in {
        "data.npz": data / "seed_mlp.npz",
        "layers.csv": data / "resnet50_profile.csv",
        "algorithm.xml": data / "all_pairs_4.xml",
        "topo.txt": ROOT / "tests/cluster/topo/dgx1_v100.txt",
        "nccl.log": ROOT / "tests/golden/nccl_all_gather_old.log",
        "machine.yaml": ROOT / "simdp/cluster/machines/aws-p4d.yaml",
        "dataset.yaml": ROOT / "scenarios/seed_mlp.yaml",
    }.items():
        shutil.copy(path, folder / name)
    for name, top in {"small": {}, **DIFFERENT}.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({**SMALL, **top}))
    made = outcome("run", "small.yaml", *QUIET, "--save-state", "state.npz")
    assert made.status == 0, made
    made = outcome("run", "small.yaml", *QUIET, "--save-weights", "weights.npz")
    assert made.status == 0, made
    shutil.copy("out/result.json", "result.json")
    shutil.rmtree("out")


WEIGHTS = ("--set", "workload.weights=damaged.npz")
FILES = {
    "data.npz": ("run", "small.yaml", "--set", "workload.dataset={kind: npz, path: damaged.npz}"),
    "weights.npz": ("run", "small.yaml", *WEIGHTS),
    "state.npz": ("run", "small.yaml", "--resume", "damaged.npz", "--set", "workload.steps=3"),
    "layers.csv": ("run", "csv.yaml", "--set", "workload.model.path=damaged.csv"),
    "algorithm.xml": ("run", "xml.yaml", "--set", "collectives.all_reduce.path=damaged.xml"),
    "topo.txt": ("run", "topology.yaml", "--set", "cluster.topology.path=damaged.txt"),
    "machine.yaml": ("check", "on.yaml", "--set", "cluster.machine=./damaged.yaml"),
    "nccl.log": ("calibrate", "nccl-tests", "damaged.log", "--nodes", "1", "--link", "nvlink4"),
    "result.json": ("run", "damaged.json"),
    "small.yaml": ("run", "damaged.yaml"),
}
"""What is damaged, and the command that reads it."""

AGAINST = ("collective", "all_gather", "--cluster", "dgx-a100", "--sizes", "1KiB:4KiB")


def file_case(chance):
    """Damage a file, and have it read."""
    name = chance.choice([*FILES, "data.npz", "state.npz", "nccl.log"])
    content, command = Path(name).read_bytes(), FILES[name]
    is_archive = name.endswith(".npz")
    changed = other_archive if is_archive and chance.random() < 0.6 else damaged
    Path(f"damaged.{name.split('.')[-1]}").write_bytes(changed(content, chance))
    if name == "nccl.log" and chance.random() < 0.7:  # a fit takes a second
        command = (*AGAINST, "--against", "damaged.log")
    return (*command, *(QUIET if command[0] != "check" else ()))


def scenario_case(chance):
    """Change a scenario as data, as text, by --set or by --over, and have it read."""
    text, raw = chance.choice(scenarios())
    others = [scenario for _, scenario in scenarios()]
    way, path = chance.random(), Path("data.yaml")
    command = ("check", str(path))
    if way < 0.6:
        text = yaml.safe_dump(mutated(raw, chance, others), sort_keys=False)
    elif way < 0.75:
        path.write_bytes(damaged(text.encode(), chance))
        return command
    elif way < 0.9:
        value = odd_value(chance, others)
        command = ("check", str(path), "--set", f"{_key(raw, chance)}={_written(value)}")
    else:
        key, values = _key(raw, chance), [odd_value(chance, others), odd_value(chance, others)]
        listed = ",".join(map(_written, values))
        short = ("--set", "workload.steps=1", "--set", "numerics=false", "--set", "sweep={}")
        command = ("compare", "small.yaml", "--over", f"{key}={listed}", *short, *QUIET)
    path.write_text(text)
    return command


def _key(raw, chance):
    parts = list(map(str, chance.choice(list(places(raw)))))
    if chance.random() < 0.2:
        parts[chance.randrange(len(parts))] = chance.choice(["x", "0", "99", "", "-1", "kind"])
    return ".".join(parts)


def _written(value):
    return yaml.safe_dump(value, default_flow_style=True, width=10**9).replace("\n...", "").strip()


def fault_of(command):
    """What is wrong with a command's outcome; where a scenario is valid, with its run as well."""
    found = outcome(*command)
    if (
        found.fault is None
        and found.status == 0
        and command[0] == "check"
        and _is_small(command[1])
    ):
        short = ("--set", "workload.steps=1", "--set", "workload.epochs=null")
        command = ("run", *command[1:], *short, "--set", "numerics=false", *QUIET)
        found = outcome(*command)
    shutil.rmtree("out", ignore_errors=True)
    return None if found.fault is None else f"{found.fault}: {json.dumps(command)[:300]}"


def _is_small(path):
    """Whether a valid scenario plays in a moment by right."""
    try:
        raw = yaml.safe_load(Path(path).read_text())
        size = raw["cluster"].get("world_size", 8)
        return isinstance(size, int) and size <= 32 and len(str(raw.get("sweep", ""))) < 100
    except (yaml.YAMLError, LookupError, AttributeError, TypeError, ValueError):
        return False
