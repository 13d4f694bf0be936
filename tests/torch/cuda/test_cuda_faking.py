import math

import pytest

torch = pytest.importorskip("torch")

from virtual_rank import virtual_rank  # noqa: E402

from simdp.errors import ProgramError  # noqa: E402

nn, F = torch.nn, torch.nn.functional


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        qkv = self.qkv(self.norm(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


def trained(here, width=32, amp=False):
    """Step time, memory now, and memory at most."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Embedding(50, width), Block(width, 4), nn.Dropout(0.1), nn.Linear(width, 50)
    ).cuda()
    adam = torch.optim.AdamW(net.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    for _ in range(2):
        begin = here.rank.clock
        tokens = torch.randint(0, 50, (4, 16)).cuda()
        with torch.autocast("cuda", enabled=amp):
            loss = F.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
        adam.zero_grad()
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(adam)
        scaler.update()
    torch.cuda.synchronize()
    seconds = here.rank.clock - begin
    return seconds, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), loss.item()


@pytest.mark.parametrize("amp", [False, True])
def test_times_and_memory_are_those_of_a_run_with_numbers(amp):
    with virtual_rank() as here:
        *real, loss = trained(here, amp=amp)
    with virtual_rank(fake=True) as here:
        *fake, none = trained(here, amp=amp)
    assert fake == pytest.approx(real, rel=1e-9)
    assert math.isnan(none)
    assert loss > 0


def test_a_model_may_be_larger_than_the_host():
    with virtual_rank(fake=True) as here:
        net = nn.Linear(2**17, 2**17, bias=False, dtype=torch.bfloat16).cuda()
        assert torch.cuda.memory_allocated() == 2**35
        y = net(torch.empty(8, 2**17, device="cuda", dtype=torch.bfloat16))
        assert y.device == torch.device("cuda", 0)
        assert here.rank.clock > 2**35 / 3.35e12
        with pytest.raises(torch.OutOfMemoryError, match="GPU 0"):
            torch.ones(2**35, device="cuda")


def test_whole_numbers_are_there_and_real_ones_are_not():
    with virtual_rank(fake=True):
        assert sorted(torch.randperm(5).tolist()) == [0, 1, 2, 3, 4]
        x = torch.rand(4, device="cuda")
        assert math.isnan(x.sum().item())
        assert x[torch.arange(2)].device == x.device
        assert torch.rand(3).device.type == "cpu"
        for asked in (x.tolist, x.cpu().numpy, lambda: bool((x > 0).all()), lambda: x[x > 0]):
            with pytest.raises(ProgramError, match=r"^--fake: what .* depends on numbers, and"):
                asked()


def test_a_number_without_a_value_is_formatted_as_nan():
    with virtual_rank(fake=True):
        loss = torch.randn(4, device="cuda").sum()
        assert f"{loss:.4f} {loss.item():8.2f}" == "nan      nan"
        with pytest.raises(ProgramError, match=r"what a script does next depends on numbers"):
            f"{loss.long():d}"


def test_the_largest_of_numbers_without_values_is_the_first_one():
    with virtual_rank(fake=True):
        guessed = torch.randn(4, 9, device="cuda").argmax(dim=-1)
        assert guessed.is_cuda
        assert guessed.tolist() == [0, 0, 0, 0]
        assert torch.randn(9, device="cuda").argmin().item() == 0


def test_a_comparison_with_a_number_without_a_value_is_false():
    with virtual_rank(fake=True):
        loss = torch.randn(4, device="cuda").mean()
        zero = torch.tensor(0.0, device="cuda")
        assert [bool(each) for each in (loss < 1e9, loss >= zero, loss == 0)] == [False] * 3
        with pytest.raises(ProgramError, match=r"what a script does next depends on numbers"):
            bool((loss < 1e9).logical_not())


def attended(here):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = torch.randn(3, 1, 2, 128, 16, device="cuda", dtype=torch.bfloat16)
    mask = create_block_mask(lambda b, h, at, of: at >= of, 1, None, 128, 128, device="cuda")
    out = flex_attention(q.requires_grad_(), k, v, block_mask=mask)
    out.float().sum().backward()
    return here.rank.clock, torch.cuda.max_memory_allocated(), q.grad.shape


@pytest.mark.filterwarnings("ignore")
def test_flex_attention_takes_the_same_time_without_numbers():
    with virtual_rank() as here:
        real = attended(here)
    with virtual_rank(fake=True) as here:
        assert attended(here) == real
