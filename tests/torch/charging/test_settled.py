"""Steps of an optimizer that are not watched again: the same numbers, times and memory."""

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow

TRAIN = """
    import sys
    import torch
    from torch import nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 500), nn.Linear(500, 7)).cuda()
    {optimizer}
    peaks = []
    x = torch.randn(8, 300).cuda()
    for number in range(6):
        model(x).square().mean().backward()
        {change}
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        peaks.append(torch.cuda.max_memory_allocated())
        optimizer.zero_grad()
    moments = [v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    assert {{m.device.type for m in moments if m.dim()}} <= {{"cuda"}}, moments
    weights = [p.detach().cpu() for p in model.parameters()]
    torch.save((weights, peaks), sys.argv[1])
"""

ADAM = "optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)"
SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.0)"
LATER = "if number == 3: optimizer.param_groups[0]['momentum'] = 0.9"
FEWER = "if number == 4: model[0].weight.grad = None"


@pytest.mark.parametrize(
    ("optimizer", "change", "unwatched"),
    [(ADAM, "", 4), (ADAM, FEWER, 2), (SGD, "", 5), (SGD, LATER, 3)],
    ids=["adamw", "fewer_gradients", "sgd", "momentum_later"],
)
def test_known_steps_are_not_watched_and_leave_the_same(
    optimizer, change, unwatched, virtually, tmp_path, monkeypatch
):
    from simdp.torch.charging import updates

    text = TRAIN.format(optimizer=optimizer, change=change)
    popped = []
    pop = updates._pop_mode
    monkeypatch.setattr(updates, "_pop_mode", lambda: popped.append(0) or pop())
    ours = virtually(text, 1, tmp_path / "ours.pt")
    assert len(popped) == unwatched
    monkeypatch.setattr(updates, "_is_torchs", lambda optimizer: False)
    watched = virtually(text, 1, tmp_path / "watched.pt")
    assert len(popped) == unwatched
    assert ours.simulated_s == watched.simulated_s
    found, wanted = (torch.load(tmp_path / f"{name}.pt") for name in ("ours", "watched"))
    assert all(torch.equal(*pair) for pair in zip(found[0], wanted[0], strict=True))
    assert found[1] == wanted[1]


def test_hooks_of_a_script_see_devices_in_every_step(virtually, tmp_path):
    virtually(
        """
        import torch
        weight = torch.nn.Parameter(torch.ones(3, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        seen = []
        optimizer.register_step_pre_hook(lambda *given: seen.append((weight * 2).device.type))
        for step in range(4):
            weight.sum().backward()
            optimizer.step()
        assert seen == ["cuda"] * 4, seen
        """,
        1,
    )


def test_optimizers_take_the_loop_as_on_the_host(virtually, tmp_path):
    """NAdam, RAdam and ASGD do not round like it where they take all tensors at once."""
    text = """
        import sys
        import torch
        given = {
            "Adadelta": {}, "Adagrad": {"lr_decay": 0.3}, "Adam": {"amsgrad": True}, "AdamW": {},
            "Adamax": {"weight_decay": 0.1}, "ASGD": {"t0": 1.0}, "NAdam": {}, "RAdam": {},
            "RMSprop": {"centered": True, "momentum": 0.9}, "Rprop": {},
            "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        }
        found = {}
        for name, settings in given.items():
            torch.manual_seed(0)
            weight = torch.nn.Parameter(torch.randn(1000).to(sys.argv[2]))
            optimizer = getattr(torch.optim, name)([weight], lr=0.013, **settings)
            for step in range(8):
                (weight**3).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            found[name] = weight.detach().cpu()
        torch.save(found, sys.argv[1])
    """
    for device in ("cuda", "cpu"):
        virtually(text, 1, tmp_path / f"{device}.pt", device)
    one, other = (torch.load(tmp_path / f"{device}.pt") for device in ("cuda", "cpu"))
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
