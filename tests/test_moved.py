"""Old import paths and names keep working, with a line of advice."""

import importlib
import sys

import pytest

from simdp.moved import MODULES, NAMES


@pytest.mark.parametrize("old", MODULES)
def test_a_moved_module_is_found_under_its_old_name(old):
    sys.modules.pop(old, None)
    with pytest.warns(FutureWarning) as caught:
        module = importlib.import_module(old)
    assert str(caught[-1].message) == f"{old} is now {MODULES[old]}; the old name will be removed."
    new = importlib.import_module(MODULES[old])
    names = [name for name in vars(new) if name[0].isalpha()]
    assert names
    assert all(getattr(module, name) is getattr(new, name) for name in names)
    for name in [name for name in sys.modules if name in MODULES]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [(module, old, new) for module, names in NAMES.items() for old, new in names.items()],
)
def test_a_renamed_name_is_found_under_its_old_one(module, old, new):
    loaded = importlib.import_module(module)
    with pytest.warns(FutureWarning, match=rf"{module}.{old} is now {module}.{new};"):
        found = getattr(loaded, old)
    assert found is getattr(loaded, new)


def test_a_name_that_never_was_is_refused():
    with pytest.raises(
        AttributeError, match=r"module 'simdp.steps.ops' has no attribute 'Nothing'"
    ):
        importlib.import_module("simdp.steps.ops").Nothing  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'simdp.nothing'"):
        importlib.import_module("simdp.nothing")
