import pytest

torch = pytest.importorskip("torch")

from virtual_rank import virtual_rank  # noqa: E402

from simdp.cluster.hardware import DEVICES, Device  # noqa: E402

F = torch.nn.functional
H100 = Device(**DEVICES.figures("h100-sxm5-80gb"))


def seconds(flops, nbytes, rate=None):
    rate = H100.rate("float32") if rate is None else rate
    return max(flops / rate, nbytes / H100.memory_rate) + H100.launch


def charged(call, device="cuda"):
    """What a rank's clock says of a call, which is given a place."""
    with virtual_rank() as here:
        torch.zeros(1, device=device)
        made = call(device)
        begin = here.rank.clock
        made()
        return here.rank.clock - begin


def product(device):
    a, b = torch.ones(512, 1024, device=device), torch.ones(1024, 256, device=device)
    return lambda: a @ b


def test_a_product_takes_what_the_roofline_says():
    nbytes = 4 * (512 * 1024 + 1024 * 256 + 512 * 256)
    assert charged(product) == pytest.approx(seconds(2 * 512 * 1024 * 256, nbytes))


def test_a_script_without_devices_is_charged_to_the_device_of_its_rank():
    assert charged(product, "cpu") == pytest.approx(charged(product))


def test_what_is_done_on_the_host_is_free_once_a_device_is_used():
    def on_host(device):
        x = torch.ones(100)
        return lambda: x + x

    assert charged(on_host, "cuda") == 0
    assert charged(on_host, "cpu") == pytest.approx(seconds(100, 800))


def test_views_are_free_and_elementwise_kernels_move_bytes():
    def view(device):
        x = torch.ones(1000, 1000, device=device)
        return lambda: x.t()[1:].reshape(999, 1000).unsqueeze(0).detach()

    def elementwise(device):
        x = torch.ones(1000, 1000, device=device)
        return lambda: x.add_(x)

    assert charged(view) == 0
    assert charged(elementwise) == pytest.approx(seconds(1e6, 8e6))


def test_sixteen_bits_are_faster_and_tfloat32_must_be_allowed():
    def halves(device):
        a = torch.ones(4096, 4096, device=device, dtype=torch.bfloat16)
        return lambda: a @ a

    def fast(device):
        a = torch.ones(512, 1024, device=device)
        torch.backends.cuda.matmul.allow_tf32 = True

        def call():
            try:
                return a @ a.t()
            finally:
                torch.backends.cuda.matmul.allow_tf32 = False

        return call

    flops = 2 * 4096**3
    assert charged(halves) == pytest.approx(seconds(flops, 0, H100.rate("bfloat16")))
    nbytes = 4 * (2 * 512 * 1024 + 512 * 512)
    flops = 2 * 512 * 1024 * 512
    assert charged(fast) == pytest.approx(seconds(flops, nbytes, H100.rate("tfloat32")))


def test_convolutions_run_in_tfloat32_unless_a_script_forbids_it():
    def convolution(device):
        layer = torch.nn.Conv2d(256, 256, 3, padding=1, bias=False, device=device)
        x = torch.ones(16, 256, 32, 32, device=device)

        def call():
            with torch.no_grad():
                return layer(x)

        return call

    flops = 2 * 16 * 32 * 32 * 256 * 256 * 9
    assert torch.backends.cudnn.allow_tf32
    assert charged(convolution) == pytest.approx(seconds(flops, 0, H100.rate("tfloat32")))
    torch.backends.cudnn.allow_tf32 = False
    try:
        assert charged(convolution) == pytest.approx(seconds(flops, 0))
    finally:
        torch.backends.cudnn.allow_tf32 = True


def update(n):
    def prepared(device):
        weight = torch.nn.Parameter(torch.ones(n, n, device=device))
        weight.grad = torch.ones_like(weight)
        adam = torch.optim.AdamW([weight], weight_decay=0.1)
        return adam.step

    return prepared


def test_an_update_takes_the_bytes_that_scenarios_count():
    assert charged(update(4000)) == pytest.approx(7 * 4 * 4000**2 / H100.stream_rate)


def test_an_update_of_little_takes_the_launches_that_scenarios_count():
    """Of AdamW's eight kernels: those of Adam, and the decay's."""
    assert charged(update(1000)) == pytest.approx(8 * H100.launch)


def test_convolutions_count_their_products():
    def conv(device):
        x = torch.ones(2, 8, 16, 16, device=device)
        layer = torch.nn.Conv2d(8, 4, 3, padding=1).to(device)
        return lambda: layer(x)

    nbytes = 4 * (2 * 8 * 256 + 4 * 8 * 9 + 4 + 2 * 4 * 256)
    assert charged(conv) == pytest.approx(seconds(2 * 2 * 4 * 256 * 72, nbytes))
