import warnings

import pytest

torch = pytest.importorskip("torch")

from torch.utils import cpp_extension  # noqa: E402
from virtual_rank import virtual_rank  # noqa: E402

from simdp.errors import ProgramError  # noqa: E402


def test_kernels_of_a_scripts_own_are_refused():
    with virtual_rank(), pytest.raises(ProgramError, match=r"cpp_extension.load_inline: a virtual"):
        cpp_extension.load_inline("own", "")


def test_compiled_functions_run_as_they_are_and_say_so_once_a_rank():
    with virtual_rank(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        double = torch.compile(lambda x: 2 * x, mode="reduce-overhead")
        assert double(3) == 6

        @torch.compile(fullgraph=True)
        def triple(x):
            return 3 * x

        assert triple(3) == 9
        net = torch.nn.Linear(2, 2).cuda()
        net.compile()
        assert net(torch.ones(1, 2, device="cuda")).is_cuda
    (text,) = [str(one.message) for one in said if "torch.compile" in str(one.message)]
    assert text.startswith(
        "torch.compile: operators run one by one here, with the times and memory"
    )


def test_calls_of_another_ranks_functions_are_refused():
    with (
        virtual_rank(),
        pytest.raises(
            ProgramError, match=r"rpc.init_rpc: virtual ranks call no functions of one another;"
        ),
    ):
        torch.distributed.rpc.init_rpc("worker0", rank=0, world_size=1)


def test_refused_classes_can_be_asked_for():
    with virtual_rank():
        assert not isinstance(torch.cuda.Stream(), torch.cuda.CUDAGraph)
