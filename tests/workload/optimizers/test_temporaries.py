"""What an update makes beside its state, as torch does."""

from for_each import for_each

from simdp.workload.optimizers import OPTIMIZERS

DECAY, ASCEND = {"weight_decay": 0.1}, {"maximize": True}

# Measured with torch 2.15 on a CPU, as the peak of torch.profiler's allocations in the ninth step
# of one tensor: foreach=False, then foreach=True.
MEASURED = [
    ("adam", {}, 2, 1),
    ("adam", {"amsgrad": True}, 2, 1),
    ("adam", DECAY, 3, 1),
    ("adam", DECAY | ASCEND, 3, 1),
    ("adamw", DECAY, 2, 1),
    ("adamw", DECAY | ASCEND, 3, 1),
    ("sgd", {}, 0, 0),
    ("sgd", DECAY, 1, 1),
    ("sgd", DECAY | ASCEND, 2, 1),
    ("sgd", {"momentum": 0.9}, 0, 0),
    ("sgd", {"momentum": 0.9, "nesterov": True}, 1, 0),
    ("sgd", {"momentum": 0.9, "nesterov": True} | DECAY, 2, 1),
    ("sgd", {"momentum": 0.9, "nesterov": True} | DECAY | ASCEND, 2, 1),
    ("rmsprop", {}, 1, 1),
    ("rmsprop", {"centered": True, "momentum": 0.9}, 1, 1),
    ("rmsprop", DECAY | ASCEND, 2, 2),
    ("adagrad", {}, 1, 2),
    ("adagrad", DECAY, 2, 2),
    ("adadelta", {}, 2, 2),
    ("adadelta", ASCEND, 3, 3),
    ("adamax", {}, 1, 1),
    ("adamax", DECAY, 2, 1),
    ("nadam", {}, 2, 1),
    ("nadam", DECAY, 3, 2),
    ("nadam", DECAY | {"decoupled_weight_decay": True}, 2, 1),
    ("radam", {}, 5, 1),
    ("radam", ASCEND, 6, 1),
    ("radam", DECAY | {"decoupled_weight_decay": True}, 5, 1),
]


# Counted in the source of torch 2.13, and in that of apex's kernels for LAMB.
COUNTED = [
    ("asgd", {}, 0, 1),
    ("asgd", DECAY, 1, 1),
    ("rprop", {}, 3, 3),
    ("adafactor", {}, 1, 1),
    ("lamb", {}, 2, 0),
    ("lars", {}, 1, 1),
    ("muon", {}, 2, 2),
    ("muon", {"nesterov": False}, 1, 1),
    ("lars", {"nesterov": True}, 2, 1),
]


@for_each(("kind", "options", "one_by_one", "all_at_once"), MEASURED + COUNTED)
def test_an_update_makes_as_many_tensors_as_torchs(kind, options, one_by_one, all_at_once):
    member = OPTIMIZERS[kind]
    assert member(**options, foreach=False).num_temporaries() == one_by_one
    assert member(**options, foreach=True).num_temporaries() == all_at_once
    assert member(**options).num_temporaries() == all_at_once  # what torch does on a GPU


def test_every_optimizer_that_learns_is_measured_or_counted():
    assert {kind for kind, *_ in MEASURED + COUNTED} == set(OPTIMIZERS) - {"none"}
    assert OPTIMIZERS["none"]().num_temporaries() == 0
