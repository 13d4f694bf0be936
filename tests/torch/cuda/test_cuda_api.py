import pytest

torch = pytest.importorskip("torch")

from virtual_rank import virtual_rank  # noqa: E402

from simdp.errors import ProgramError  # noqa: E402


@pytest.fixture
def here():
    with virtual_rank() as found:
        yield found


H100 = int(79.11 * 2**30)


def test_devices_are_those_of_the_catalogue(here):
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 4
    assert torch.cuda.get_device_name(1) == "NVIDIA H100 80GB HBM3"
    assert torch.cuda.get_device_capability() == (9, 0)
    assert torch.cuda.get_device_properties(0).multi_processor_count == 132
    assert torch.cuda.get_device_properties("cuda:1").total_memory == H100
    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.nccl.version() > (2, 0)
    assert torch.accelerator.current_accelerator() == torch.device("cuda")


def test_a_newer_device_has_its_own_capability():
    with virtual_rank(device="rtx5090-32gb"):
        properties = torch.cuda.get_device_properties(0)
    assert (properties.major, properties.minor) == (12, 0)
    assert properties.multi_processor_count == 170


def test_the_current_device_is_chosen(here):
    torch.cuda.set_device("cuda:2")
    assert torch.cuda.current_device() == 2 == torch.accelerator.current_device_index()
    with torch.cuda.device(1):
        assert torch.ones(1, device="cuda").get_device() == 1
    assert torch.cuda.current_device() == 2
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        torch.cuda.set_device("cpu")


def test_memory_is_that_of_the_tensors(here):
    x = torch.ones(1024, 1024, device="cuda")
    assert torch.cuda.memory_allocated() == 4 * 2**20
    y = x + 1
    assert torch.cuda.memory_allocated() == 8 * 2**20 == torch.cuda.max_memory_allocated()
    assert x.view(-1)[3:].untyped_storage().nbytes() == 4 * 2**20  # views take nothing
    del y
    assert torch.cuda.memory_allocated("cuda:0") == 4 * 2**20
    assert torch.cuda.memory_reserved() == 8 * 2**20
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 4 * 2**20 == torch.cuda.memory_reserved()
    assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == 4 * 2**20
    assert torch.cuda.mem_get_info() == (H100 - 4 * 2**20, H100)
    assert "4194304 B" in torch.cuda.memory_summary()
    x.untyped_storage().resize_(0)
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.memory_allocated(1) == 0


def test_a_device_that_is_full_says_so_as_torch_does(here):
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"Tried to allocate 512.00 GiB. GPU 0 "):
        torch.empty(2**33, 16, device="cuda")
    torch.cuda.set_per_process_memory_fraction(1e-4)
    with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory. Tried to .* 9.54 MiB"):
        torch.ones(2_500_000, device="cuda")
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.memory_stats()["num_ooms"] == 2


def test_events_tell_virtual_time(here):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    x = torch.ones(1024, 1024, device="cuda")
    start.record()
    x @ x
    end.record()
    torch.cuda.synchronize()
    flops, rate = 2 * 1024**3, 0.8 * 67e12
    assert start.elapsed_time(end) == pytest.approx((flops / rate + 5e-6) * 1e3, rel=1e-12)
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        start.elapsed_time(torch.cuda.Event())


def test_streams_run_beside_each_other_and_wait_for_each_other(here):
    x = torch.ones(1024, 1024, device="cuda")
    torch.cuda.synchronize()
    begin = here.rank.clock
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        x @ x
        x @ x
    one = (side.clock() - begin) / 2
    x @ x
    assert here.rank.clock == pytest.approx(begin + one)
    torch.cuda.current_stream().wait_stream(side)
    assert here.rank.clock == pytest.approx(begin + 2 * one)
    side.wait_event(torch.cuda.current_stream().record_event())
    with torch.cuda.stream(side):
        x @ x
    side.synchronize()
    assert here.rank.clock == pytest.approx(begin + 3 * one)
    assert side.query()
    assert not side.is_capturing()


def test_callables_to_graph_run_as_they_are(here):
    model = torch.nn.Linear(3, 2).cuda()
    x = torch.ones(4, 3, device="cuda")
    with pytest.warns(UserWarning, match=r"make_graphed_callables: operators are launched one by"):
        graphed = torch.cuda.make_graphed_callables((model, torch.relu), ((x,), (x,)))
    assert graphed == (model, torch.relu)


def test_what_no_virtual_device_has_is_refused(here):
    with pytest.raises(ProgramError, match=r"torch.cuda.CUDAGraph: virtual devices run no such"):
        torch.cuda.CUDAGraph()
    with pytest.raises(ProgramError, match=r"take torch.cuda.Stream"):
        torch.cuda.ExternalStream(0)
