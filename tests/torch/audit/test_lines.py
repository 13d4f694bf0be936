"""Lines of a script: where a loss, a schedule, a sampler or a part of the samples comes from."""

import pytest

pytest.importorskip("torch")

from simdp.torch.audit.lines import Line, argument, by_world_size, followed, guard, only_call

SCRIPT = """
def masked_mean(values, mask):
    return (values * mask).sum() / mask.sum()

def compute_loss(batch):
    loss = masked_mean(batch, batch)
    return loss

def schedule(optimizer, steps):
    return LambdaLR(optimizer, steps)

def stream(lines):
    for place, line in enumerate(lines):
        if place % 4 == 0:
            yield line

def train():
    sampler = Sampler(data)
    loader = DataLoader(data, sampler=sampler)
    total_steps = epochs * len(loader) // world_size
    shorter = total_steps - 1
    scheduler = schedule(optimizer, total_steps)
    loader.sampler.set_epoch(1)
    loss = compute_loss(batch)
    loss.backward()

compute = make()
loss = compute(batch)
"""


@pytest.fixture
def at(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    numbers = {text.strip(): place for place, text in enumerate(SCRIPT.splitlines(), 1)}
    return lambda text: Line(str(file), numbers[text])


def test_a_loss_is_followed_into_the_functions_that_compute_it(at):
    mean = at("return (values * mask).sum() / mask.sum()")
    assert followed(at("loss = compute_loss(batch)")) == mean
    assert followed(at("loss = masked_mean(batch, batch)")) == mean
    assert followed(at("loss = compute(batch)")) == at("loss = compute(batch)")
    assert followed(None) is None


def test_a_schedule_is_found_where_the_number_of_ranks_is_used(at):
    frames = [
        at("return LambdaLR(optimizer, steps)"),
        at("scheduler = schedule(optimizer, total_steps)"),
    ]
    assert by_world_size(frames) == at("total_steps = epochs * len(loader) // world_size")
    assert by_world_size(frames[:1]) == frames[0]
    assert by_world_size([]) is None


def test_the_sampler_of_a_loader_is_where_it_is_made(at):
    loader = at("loader = DataLoader(data, sampler=sampler)")
    assert argument(loader, ("sampler",)) == at("sampler = Sampler(data)")
    assert argument(loader, ("batch_sampler",)) == loader


def test_a_part_of_the_samples_is_taken_by_the_remainder_around_a_yield(at):
    assert guard(at("yield line")) == at("if place % 4 == 0:")
    assert guard(at("loss.backward()")) == at("loss.backward()")


def test_the_only_call_of_a_method(at):
    call = at("loader.sampler.set_epoch(1)")
    assert only_call(call.file, "set_epoch") == call
    assert only_call(call.file, "step") is None
