import copy

import pytest

torch = pytest.importorskip("torch")

from torch.nn.parallel import comm  # noqa: E402
from virtual_rank import virtual_rank  # noqa: E402

nn, F = torch.nn, torch.nn.functional


@pytest.fixture
def here():
    with virtual_rank() as found:
        yield found


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )


def batch(number):
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(10, 3, 8, 8, generator=generator)
    return x, torch.randint(0, 10, (10,), generator=generator)


def test_data_parallel_has_the_bits_of_its_pieces_one_by_one(here):
    parallel = nn.DataParallel(net().cuda())
    sgd = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
    alone = net()
    reference = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    for number in range(3):
        x, y = batch(number)
        sgd.zero_grad()
        out = parallel(x.cuda())
        assert out.device == torch.device("cuda", 0)
        F.cross_entropy(out, y.cuda()).backward()
        sgd.step()
        replicas = [alone, *[copy.deepcopy(alone) for _ in range(3)]]
        for replica in replicas:
            replica.zero_grad()
        outs = [replica(part) for replica, part in zip(replicas, x.chunk(4), strict=True)]
        F.cross_entropy(torch.cat(outs), y).backward()
        for parameter, *others in zip(*(r.parameters() for r in replicas), strict=True):
            for other in others:
                parameter.grad += other.grad
        reference.step()
    ours = parallel.module.state_dict()
    assert all(torch.equal(ours[name].cpu(), value) for name, value in alone.state_dict().items())


def test_devices_of_a_process_work_at_the_same_time(here):
    replicas = [nn.Linear(512, 512).cuda(place) for place in range(4)]
    inputs = [torch.ones(512, 512, device=f"cuda:{place}") for place in range(4)]
    for place in range(4):
        torch.cuda.synchronize(place)
    begin = here.rank.clock
    outs = nn.parallel.parallel_apply(replicas, inputs)
    assert [out.get_device() for out in outs] == [0, 1, 2, 3]
    ends = [torch.cuda.current_stream(place).clock() for place in range(4)]
    assert ends == pytest.approx([ends[0]] * 4)
    work = 2 * 512**3 / (0.8 * 67e12)
    assert ends[0] - begin == pytest.approx(work + 4 * 5e-6)  # launches wait for one another


def test_copies_take_what_the_links_take(here):
    x = torch.ones(25_000_000, device="cuda")
    torch.cuda.synchronize()
    begin = here.rank.clock
    pieces = comm.scatter(x, [0, 1])
    assert [piece.get_device() for piece in pieces] == [0, 1]
    links = here.machine.links
    assert here.rank.clock - begin == pytest.approx(links.copy(0, 1, 5e7))
    assert links.copy(0, 1, 1e9) > 9 * links.copy(0, 1, 1e8)
    assert torch.equal(comm.gather(pieces, destination=0), x)
    total = comm.reduce_add([torch.full((3,), float(p), device=f"cuda:{p}") for p in range(4)], 2)
    assert total.get_device() == 2
    assert total.tolist() == [6.0] * 3
    for copied, place in zip(comm.broadcast(total, [2, 3]), [2, 3], strict=True):
        assert copied.get_device() == place
    with pytest.raises(RuntimeError, match="same GPU with one of the tensors"):
        comm.reduce_add([total], 0)
    with pytest.raises(RuntimeError, match="Exactly one of 'devices' and 'out'"):
        comm.broadcast(total)


def test_an_error_on_a_replica_says_where(here):
    class Wrong(nn.Module):
        def forward(self, x):
            if x.get_device() == 1:
                raise KeyError("wrong")
            return x

    with pytest.raises(KeyError, match="in replica 1 on device 1"):
        nn.DataParallel(Wrong().cuda())(torch.ones(4, 1, device="cuda"))
