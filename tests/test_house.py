"""The house rules: who may import what, what stands where, and what every name promises."""

import ast
import importlib
import inspect
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePath

import pytest
from for_each import for_each
from real_torch import torch_installed

import simdp
from simdp.files import Catalogue
from simdp.spec import Spec
from simdp.studies.families import HOMES as HOMES_OF_TABLES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "simdp").rglob("*.py"))
SCENARIOS = sorted((ROOT / "scenarios").rglob("*.yaml"))

FLOORS = [
    {
        "arrays",
        "family",
        "spec",
        "units",
        "errors",
        "rng",
        "files",
        "tables",
        "keys",
        "version",
    },
    {"results", "traces"},
    {"cluster", "workload", "collectives", "job"},
    {"steps"},
    {"strategies"},
    {"scenario"},
    {"engine"},
    {"reports", "distributed"},
    {"studies", "torch"},
    {"cli", "testing"},
]
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}
OFF_THE_FLOORS = {"", "__main__", "probes"}
"""The root and its door, which only hand over, and the scripts that stand alone."""

HOMES = {
    "distributed": ("studies.executor.dask",),
    "jinja2": ("reports.page",),
    "matplotlib": ("reports.plots",),
    "networkx": (),
    "pandas": ("results.result",),
    "pint": ("units",),
    "pyarrow": ("files.records",),
    "rich": (
        "cli",
        "reports.batch_table",
        "reports.collective_table",
        "reports.audit_table",
        "reports.diagnosis_table",
        "reports.difference_table",
        "reports.job_table",
        "reports.plan_table",
        "reports.shown",
        "reports.sweep_table",
        "reports.table",
        "reports.validation_table",
        "reports.wide_table",
    ),
    "simpy": ("engine",),
    "sqlite3": ("files",),
    "torch": ("probes", "torch"),
    "typer": ("__main__", "cli"),
    "yaml": ("files",),
}
"""Each of these libraries, and the only places that may import it."""


ROOMS = sorted({path.parent.relative_to(ROOT / "simdp") for path in FILES} - {Path()})


def module_name(path):
    """``simdp/results/trace.py`` is ``results.trace``; a package's `__init__` is the package."""
    parts = list(path.relative_to(ROOT / "simdp").with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}

LOADED = [m for m in MODULES if torch_installed() or m.split(".")[0] != "torch"]
"""All that can be imported here."""


@cache
def tree(module):
    """What is written in a module."""
    return ast.parse(MODULES[module].read_text())


@cache
def nodes(module):
    return list(ast.walk(tree(module)))


def ours(name):
    """The module of simdp that a dotted name stands for, or None."""
    for end in range(name.count(".") + 1, 0, -1):
        module = ".".join(name.split(".")[1:end])
        if name.split(".")[0] == "simdp" and module in MODULES:
            return module
    return None


def imported(node, module):
    """Full names that an import statement in ``module`` brings in."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert not node.level, f"{module}: write the whole path of an import"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


@cache
def for_types_only(module):
    """Nodes under ``if TYPE_CHECKING:``, which never run."""
    choices = [node for node in nodes(module) if isinstance(node, ast.If)]
    blocks = [node for node in choices if "TYPE_CHECKING" in ast.dump(node.test)]
    return {inner for block in blocks for line in block.body for inner in ast.walk(line)}


@cache
def imports(module, types_too=True):
    """Every name that a module imports, wherever the statement stands."""
    left_out = set() if types_too else for_types_only(module)
    return [
        name for node in nodes(module) if node not in left_out for name in imported(node, module)
    ]


def calls(name):
    """Modules that call a function by this very name, ``exit`` or ``sys.exit``."""
    return {module for module in MODULES if name in names_called(module)}


@cache
def names_called(module):
    """What a module calls, by the names by which it does."""
    return {ast.unparse(node.func) for node in nodes(module) if isinstance(node, ast.Call)}


def top(module):
    return module.split(".")[0]


def definitions(module, *kinds):
    return [node for node in nodes(module) if isinstance(node, kinds)]


# Imports -----------------------------------------------------------------------------------------


def test_every_module_lives_on_a_floor():
    assert {top(module) for module in MODULES} - OFF_THE_FLOORS <= set(FLOOR)


def test_imports_lead_downwards_and_never_to_a_sibling():
    """The modules of the ground floor are small and may lean on each other, but not in a circle."""
    wrong = []
    for module in MODULES:
        here = top(module)
        if here in OFF_THE_FLOORS:
            continue
        for name in imports(module):
            there = top(ours(name) or "")
            if there in OFF_THE_FLOORS or there == here or FLOOR[here] == FLOOR[there] == 0:
                continue
            if FLOOR[there] >= FLOOR[here]:
                wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_reports_and_results_know_no_engine():
    wrong = [
        f"{module} imports {name}"
        for module in MODULES
        for name in imports(module)
        if top(module) in ("reports", "results") and name.startswith("simdp.engine")
    ]
    assert wrong == []


def test_only_the_root_and_its_door_import_the_command_line():
    users = {
        module for module in MODULES for name in imports(module) if name.startswith("simdp.cli")
    }
    assert {user for user in users if top(user) != "cli"} <= {"", "__main__"}


def test_only_their_command_imports_the_probes():
    users = {
        module for module in MODULES for name in imports(module) if name.startswith("simdp.probes")
    }
    assert {user for user in users if top(user) != "probes"} == {"cli.probe"}


def test_no_imports_go_in_circles():
    """Not those in functions, nor those for types only."""
    waiting = {
        module: {ours(name) for name in imports(module)} - {None, module}
        for module in MODULES
        if module
    }
    while free := [module for module, needs in waiting.items() if not needs & set(waiting)]:
        for module in free:
            del waiting[module]
    assert waiting == {}


def test_no_module_imports_the_root_when_it_is_loaded():
    """It hands over to the others, and would join all of them in one circle."""
    users = [
        module
        for module in MODULES
        for node in tree(module).body
        if "simdp" in imported(node, module)
    ]
    assert users == []


def loads(module):
    """Modules that a module imports when it is loaded: not in a function, nor for types only."""
    inside = {
        node
        for function in definitions(module, ast.FunctionDef, ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    left_out = inside | for_types_only(module)
    names = (
        name for node in nodes(module) if node not in left_out for name in imported(node, module)
    )
    return {ours(name) for name in names} - {None, module}


@cache
def chain(module):
    """The longest chain of modules each of which imports the next one."""
    return (module, *max(map(chain, sorted(loads(module))), key=len, default=()))


def test_chains_of_imports_are_short():
    """A long one comes of helpers above their users, and of packages that import their members."""
    longest = max(map(chain, MODULES), key=len)
    assert len(longest) <= 30, " > ".join(longest)


@for_each("library", HOMES)
def test_a_library_is_imported_only_at_home(library):
    users = {
        module
        for module in MODULES
        for name in imports(module, types_too=False)
        if name.split(".")[0] == library
    }
    strangers = {
        user
        for user in users
        if not any(user == home or user.startswith(f"{home}.") for home in HOMES[library])
    }
    assert strangers == set()


def test_scipy_is_imported_only_where_it_is_used():
    at_the_top = [
        module
        for module in MODULES
        for node in tree(module).body
        for name in imported(node, module)
        if name.split(".")[0] == "scipy"
    ]
    assert at_the_top == []


def test_imports_for_types_only_are_rare():
    """A module that needs them anywhere else hides a circle.

    NumPy is imported where arrays are read; the list of families imports a family when needed.
    """
    found = {
        (module, name)
        for module in MODULES
        for node in for_types_only(module)
        for name in imported(node, module)
    }
    names = {
        module: {name for user, name in found if user == module}
        for module in {module for module, _ in found if top(module) not in ("", "cli")}
    }
    assert set(names) == {"files.tensors", "studies.families"}
    assert names["files.tensors"] == {"numpy"}


def test_every_file_of_data_is_in_the_package():
    patterns = [
        str(Path(*package.split(".")) / pattern)
        for package, each in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
            "setuptools"
        ]["package-data"].items()
        for pattern in each
    ]
    files = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "simdp").rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    assert "simdp/workload/models/listed.json" in files
    assert [file for file in files if not any(map(PurePath(file).match, patterns))] == []


# What code may do --------------------------------------------------------------------------------


def test_only_the_command_line_prints():
    assert {top(module) for module in calls("print")} <= {"cli"}


def test_only_the_command_line_exits():
    leaving = set.union(*(calls(name) for name in ("exit", "quit", "sys.exit", "os._exit")))
    leaving |= {
        module
        for module in MODULES
        for node in definitions(module, ast.Raise)
        if "SystemExit" in ast.unparse(node)
    }
    assert {m for m in leaving if top(m) != "probes"} <= {"__main__", "cli"}


def test_problems_are_joined_without_full_stops_inside():
    """``"; ".join(problems)`` makes ``".;"`` of lines that end in a full stop: `errors.joined`."""
    joins = r'"; "\.join\([\w.]*problems\)|\.problems\[0\]\};'
    assert [m for m in MODULES if re.search(joins, MODULES[m].read_text())] == []


def test_no_bare_exception_is_raised():
    wrong = [
        f"{module}:{node.lineno}"
        for module in MODULES
        for node in definitions(module, ast.Raise)
        if node.exc and re.match(r"(Base)?Exception\b", ast.unparse(node.exc))
    ]
    assert wrong == []


def test_no_global_random_numbers_and_no_wall_clock():
    modern = "np.random.Generator", "np.random.PCG64", "np.random.SeedSequence"
    old = [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module in MODULES
        for node in definitions(module, ast.Attribute)
        if ast.unparse(node).startswith("np.random.") and ast.unparse(node) not in modern
        if not (module == "rng" and node.attr == "RandomState")
        if module not in ("torch.generators", "torch.isolation")
    ]
    assert old == []  # torch's generator is an old one, with a seed of its own; scripts have others
    unruly = {"datetime", "random", "secrets", "time"}
    users = {m for m in MODULES for name in imports(m) if name.split(".")[0] in unruly}
    assert {m for m in users if top(m) != "probes"} <= {
        "cli.common",  # the progress bar
        "torch.generators",  # those of scripts
        "torch.isolation",
    }


PRODUCTS = ("np.matmul", "np.vecdot", "np.matvec", "np.vecmat", "np.einsum", "np.tensordot")

IN_A_RUN = ("workload.layers", "workload.optimizers", "engine.compression")
"""Arithmetic that only interpreters of a run start, which ignore the processor's flags."""


def test_products_outside_of_a_run_ignore_the_flags_of_blas():
    """`simdp.arrays.product` does."""
    products = [
        f"{module}: {ast.unparse(node)}"
        for module in MODULES
        if not f"{module}.".startswith(tuple(f"{lead}." for lead in IN_A_RUN))
        if top(module) not in ("arrays", "probes", "torch")
        for node in definitions(module, ast.BinOp, ast.AugAssign, ast.Call)
        if isinstance(getattr(node, "op", None), ast.MatMult)
        or (isinstance(node, ast.Call) and ast.unparse(node.func) in PRODUCTS)
    ]
    assert products == []


def test_one_function_casts_to_16_bits():
    """Torch goes by float32, and NumPy does not: `simdp.workload.precision.cast`."""
    casts = [
        f"{module}: {ast.unparse(node)}"
        for module in MODULES
        for node in definitions(module, ast.Call)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "astype"
        if re.search(r"b?float16|half|numpy_dtype", ast.unparse(node.args[0]))
    ]
    assert casts == []


# Sizes and documentation -------------------------------------------------------------------------


def lines_of_code(path):
    """Lines of a module without blank ones, comments and docstrings."""
    found = ast.parse(path.read_text())
    strings = {
        number
        for node in ast.walk(found)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for number in range(node.lineno, node.end_lineno + 1)
    }
    lines = enumerate(path.read_text().splitlines(), 1)
    return [
        line
        for number, line in lines
        if number not in strings and line.strip() and not line.strip().startswith("#")
    ]


@for_each("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_short_and_documented(path):
    module = module_name(path)
    assert len(lines_of_code(path)) <= 800
    assert ast.get_docstring(tree(module)), "a module says what lives in it"
    functions = definitions(module, ast.FunctionDef, ast.AsyncFunctionDef)
    assert [f.name for f in functions if f.end_lineno - f.lineno >= 60] == []
    public = [
        node
        for node in tree(module).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    ]
    assert [node.name for node in public if not ast.get_docstring(node)] == []


@for_each("module", [m for m in LOADED if top(m) not in OFF_THE_FLOORS])
def test_public_methods_are_documented_where_they_are_first_declared(module):
    loaded = importlib.import_module(f"simdp.{module}")
    missing = [
        f"{name}.{attribute}"
        for name, member in inspect.getmembers(loaded, inspect.isclass)
        if member.__module__ == loaded.__name__ and not name.startswith("_")
        for attribute in vars(member)
        if not attribute.startswith("_")
        and (
            inspect.isfunction(inspect.unwrap(getattr(member, attribute)))
            or isinstance(vars(member)[attribute], property)
        )
        and not inspect.getdoc(getattr(member, attribute))
    ]
    assert missing == []


def test_the_public_names_are_sorted_and_resolve():
    assert simdp.__all__ == sorted(simdp.__all__)
    assert len(simdp.__all__) <= 13
    for name in simdp.__all__:
        assert getattr(simdp, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = simdp.nonsense
    assert set(simdp.__all__) <= set(dir(simdp))


SECTION = re.compile(r"^(?:Attributes|Parameters)\n-+\n(.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)
"""Entries of what a class holds, in NumPy's form."""


def test_fields_are_described_below_them():
    """Not in a section, which would repeat their names and types."""
    described_above = [
        f"{module}.{node.name}: {name}"
        for module in MODULES
        for node in definitions(module, ast.ClassDef)
        for entries in SECTION.findall(ast.get_docstring(node) or "")
        for line in entries.splitlines()
        if not line.startswith(" ")
        for name in line.split(" : ")[0].split(", ")
        for field in node.body
        if isinstance(field, ast.AnnAssign) and ast.unparse(field.target) == name
    ]
    assert described_above == []


# Names and types ---------------------------------------------------------------------------------

FIT_EVERYTHING = {"found", "one", "each", "said", "asked"}
"""Names of bindings that say nothing of the thing."""


def test_names_say_what_a_thing_is():
    """Names that are assigned to, looped over or parameters."""
    names = Counter(
        node.arg if isinstance(node, ast.arg) else node.id
        for module in MODULES
        for node in nodes(module)
        if isinstance(node, ast.arg)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    )
    assert sum(names[name] for name in FIT_EVERYTHING) <= 20


def test_records_are_read_by_attributes():
    """String keys are for foreign documents, read at the border, and for names of arrays."""
    keys = [
        node
        for module in MODULES
        for node in definitions(module, ast.Subscript)
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
        if ast.unparse(node.value) != "Literal"  # a kind
    ]
    assert len(keys) <= 7 / 1000 * sum(len(lines_of_code(path)) for path in FILES)


def test_few_functions_take_anything():
    """Those of torch's own types apart: what a function takes has a type."""
    functions = [
        node
        for module in MODULES
        if "torch" not in module.split(".")
        for node in definitions(module, ast.FunctionDef, ast.AsyncFunctionDef)
        if any(
            isinstance(name, ast.Name) and name.id == "Any"
            for parameter in ast.walk(node.args)
            for name in ast.walk(parameter)
        )
    ]
    assert len(functions) <= 110


# Runtime -----------------------------------------------------------------------------------------

MAX_MEMBERS = 25
"""Public methods, properties and attributes of a class of the runtime, inherited ones too."""


def attributes_set(kind):
    """Public names that a class's own methods give to ``self``."""
    module = kind.__module__.removeprefix("simdp.")
    (body,) = (node for node in definitions(module, ast.ClassDef) if node.name == kind.__name__)
    return {
        node.attr
        for node in ast.walk(body)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if ast.unparse(node.value) == "self"
    }


def runtime_classes():
    for module in MODULES:
        if top(module) in ("engine", "steps", "distributed"):
            loaded = importlib.import_module(f"simdp.{module}")
            for _, kind in inspect.getmembers(loaded, inspect.isclass):
                if kind.__module__ == loaded.__name__ and not issubclass(kind, Spec):
                    yield kind


@for_each("kind", list(runtime_classes()), ids=lambda kind: kind.__qualname__)
def test_a_class_of_the_runtime_has_few_members(kind):
    """Those of pydantic and SimPy do not count."""
    bases = [base for base in kind.__mro__ if base.__module__.startswith("simdp.")]
    found = {name for base in bases for name in {*vars(base), *attributes_set(base)}}
    assert len({name for name in found if not name.startswith("_")}) <= MAX_MEMBERS


# Tables of registration --------------------------------------------------------------------------


FAMILIES = (
    "cluster.failures",
    "cluster.stragglers",
    "cluster.topologies",
    "job.recovery",
    "job.targets",
    "strategies",
    "strategies.comm_hooks",
    "workload.compute",
    "workload.datasets",
    "workload.faults",
    "workload.layers.activations",
    "workload.losses",
    "workload.models",
    "workload.optimizers",
    "workload.precision",
    "workload.schedules",
)


def tables(package):
    """The tables from kinds to classes that a package declares."""
    loaded = importlib.import_module(f"simdp.{package}")
    return {
        name: table
        for name, table in list(vars(loaded).items())  # which imports may add to
        if name.isupper()
        and isinstance(table, Mapping)
        and not isinstance(table, Catalogue)
        and all(map(inspect.isclass, table.values()))
    }


def members():
    return [
        pytest.param(package, kind, member, id=f"{package}.{name}.{kind}")
        for package in (*FAMILIES, "collectives", "workload.layers")
        if package in MODULES
        for name, table in tables(package).items()
        for kind, member in table.items()
    ]


def own_kind(member):
    return member.model_fields["kind"].default if issubclass(member, Spec) else member.kind


@for_each(("package", "kind", "member"), members())
def test_a_table_calls_a_member_by_its_kind(package, kind, member):
    assert own_kind(member) == kind
    assert member.__doc__, "`list` shows the first line"


@for_each(("package", "kind", "member"), members())
def test_a_member_lives_in_a_module_of_its_family(package, kind, member):
    assert f"{member.__module__}.".startswith(f"simdp.{package}.")


def test_layers_are_the_activations_and_then_the_others_each_sorted():
    activations, layers = (tables("workload.layers")[name] for name in ("ACTIVATIONS", "LAYERS"))
    others = list(layers)[len(activations) :]
    assert list(layers)[: len(activations)] == list(activations) == sorted(activations)
    assert others == sorted(others)
    assert len(set(layers.values())) == len(layers)


@for_each("package", [p for p in FAMILIES if p in MODULES])
def test_a_family_has_one_sorted_table(package):
    (table,) = tables(package).values()
    assert list(table) == sorted(table)
    assert len(set(table.values())) == len(table)


KINDS_THAT_ARE_OURS = {
    "collectives.hierarchical": {"ALL_GATHER[self._kind_back]"},  # checked when the spec is made
    "reports.validation": {"TITLES[means.kind]"},  # of a fold, which is no spec
    "workload.models.from_config": {"MODELS[entry.kind]"},  # of our own table FROM_CONFIG
}
"""Look-ups in a table by what is no literal, where the kind is certainly one of simdp's own."""


def looked_up(module):
    """Look-ups in tables of families, and in any table by a spec's kind, but for literals."""
    families = {f"{HOMES_OF_TABLES[family]}.{family.upper()}" for family in HOMES_OF_TABLES}
    here = {name.rpartition(".")[2] for name in imports(module) if name in families}
    here |= {name.rpartition(".")[2] for name in families if name.startswith(f"simdp.{module}.")}
    for node in definitions(module, ast.Subscript):
        table, key = ast.unparse(node.value), ast.unparse(node.slice)
        literal = re.fullmatch(r"'\w+'( if .* else '\w+')?", key)
        by_kind = table.isupper() and key.endswith((".kind", "_kind", "['kind']"))
        if not literal and (table in here or by_kind):
            yield ast.unparse(node)


@for_each("module", LOADED)
def test_no_table_is_looked_up_by_a_kind_that_may_come_from_outside(module):
    """A class from outside is in no table: ask the spec's class, or `Family.find`."""
    assert set(looked_up(module)) <= KINDS_THAT_ARE_OURS.get(module, set())


# Strategies --------------------------------------------------------------------------------------

CAPABILITIES = ("isinstance", "issubclass", "hasattr", "getattr")


def strategy_classes():
    """Names of strategies' classes; those of bases have no kind of their own."""
    return {member.__name__ for member in tables("strategies")["STRATEGIES"].values()}


def outside_of_strategies():
    return [m for m in MODULES if top(m) not in ("strategies", "probes")]


def kinds_in(node):
    """Kinds of strategies among the constants of an expression."""
    values = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
    return {one for one in values if isinstance(one, str)} & set(tables("strategies")["STRATEGIES"])


def is_of_a_strategy(node):
    """Whether an expression is a strategy, or its kind."""
    return re.search(r"(^|\.)(strategy|loop)(\.kind)?$", ast.unparse(node)) is not None


def test_no_other_package_imports_the_class_of_a_strategy():
    classes = strategy_classes()
    wrong = [
        f"{module} imports {name}"
        for module in outside_of_strategies()
        for name in imports(module)
        if name.startswith("simdp.strategies.") and name.rpartition(".")[2] in classes
    ]
    assert wrong == []


def test_no_other_package_tells_strategies_apart_by_their_kind():
    """What it must know is an attribute or a method of `Strategy`."""
    wrong = [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module in outside_of_strategies()
        for node in definitions(module, ast.Compare)
        if kinds_in(node) or is_member_of_some_kinds(node)
    ]
    assert wrong == []


def is_member_of_some_kinds(node):
    """Whether a strategy's kind is looked up in a collection."""
    looks_up = any(isinstance(one, ast.In | ast.NotIn) for one in node.ops)
    return looks_up and ast.unparse(node.left).endswith("strategy.kind")


def test_no_other_package_looks_for_an_option_of_a_strategy():
    """`isinstance`, `hasattr` and `getattr` of a strategy; options are its own."""
    wrong = [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module in outside_of_strategies()
        for node in definitions(module, ast.Call)
        if ast.unparse(node.func) in CAPABILITIES and is_of_a_strategy(node.args[0])
        if not ast.unparse(node.args[1]).startswith(("dict", "str"))  # as YAML writes it
    ]
    names = ("player", "one_process")
    wrong += [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module in outside_of_strategies()
        for node in definitions(module, ast.Attribute)
        if node.attr in names and is_of_a_strategy(node.value)
    ]
    assert wrong == []


# Scenarios ---------------------------------------------------------------------------------------


@for_each("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_begins_with_the_question_that_it_answers(path):
    header, *lines = path.read_text().splitlines()
    assert header.startswith("# yaml-language-server: $schema="), "editors look for it here"
    comment = []
    for line in lines:
        if not line.startswith("#"):
            break
        comment.append(line)
    assert comment, "begin with a comment"
    assert "?" in " ".join(comment)


# Tests -----------------------------------------------------------------------------------------


@for_each("room", ROOMS, ids=str)
def test_every_room_has_its_tests_where_one_looks_for_them(room):
    """In the folder of its name, or in one file of its name a folder above."""
    own = list((ROOT / "tests" / room).glob("test_*.py"))
    above = list((ROOT / "tests" / room.parent).glob(f"test_{room.name}*.py"))
    assert own or above


def test_tests_measure_no_time_by_the_clock():
    """How long something takes depends on what else the machine does; CPU time depends less."""
    clocks = re.compile(r"\btime\.(time|monotonic|perf_counter)(_ns)?\(\)")
    real = {  # those of scripts
        "runner.py",
        "test_recorded_scripts.py",
        "test_torch_launch.py",
        "test_turns.py",
    }
    paths = (path for path in ROOT.glob("tests/**/*.py") if "scripts" not in path.parts)
    assert {path.name for path in paths if clocks.search(path.read_text())} <= real


def test_no_two_files_of_tests_have_one_name():
    """Pytest imports them by it, and would refuse the second one."""
    names = Counter(path.name for path in ROOT.glob("tests/**/test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_folder_of_tests_is_a_room_or_holds_data():
    folders = {
        path.parent.relative_to(ROOT / "tests") for path in ROOT.glob("tests/*/**/test_*.py")
    }
    whole = {Path("fuzz"), Path("torch_scripts")}  # which go through all rooms, or run from outside
    assert folders <= {*ROOMS, *whole}
