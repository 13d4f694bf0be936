"""Whether torch is there, which the folder ``tests/torch`` would otherwise pass for."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def torch_installed():
    try:
        version("torch")
    except PackageNotFoundError:
        return False
    return True


class NoTorch:
    """Says of torch that it is not there, before Python takes a folder of its name for it."""

    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
