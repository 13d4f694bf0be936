"""Samples from CSV: features, labels that are classes or numbers, and what is wrong, by line."""

import numpy as np
import pytest
from for_each import for_each

import simdp
from simdp.errors import ScenarioError
from simdp.scenario import checked
from simdp.workload.datasets import files
from simdp.workload.datasets.files import Csv
from simdp.workload.losses.classification import CrossEntropy
from simdp.workload.losses.regression import MSE
from simdp.workload.models.sequential import MLP

DATA = Csv(path="data.csv", label="y")
NUMBERS, CLASSES = MLP(widths=[2, 1]), MLP(widths=[2, 3])
SCENARIO = {
    "cluster": {"world_size": 2, "device": "a100-sxm4-80gb", "link": "nvlink3"},
    "strategy": "ddp",
}


@pytest.fixture
def store(tmp_path):
    def store(text):
        (tmp_path / "data.csv").write_text(text)
        return tmp_path

    return store


def scenario(base, dataset, outputs=3, **more):
    workload = {"model": {"kind": "mlp", "widths": [2, outputs]}, "dataset": dataset}
    return checked({**SCENARIO, "workload": {**workload, "microbatch": 2, **more}}, base)


def test_text_becomes_classes_in_the_order_of_the_alphabet(store):
    base = store(
        "# of irises\nwidth, kind ,length\n1,virginica,2\n3,setosa,4.5\n\n5, setosa,-6e1\n"
    )
    chosen = Csv(path="data.csv", label="kind")
    arrays = chosen.arrays(MLP(widths=[2, 2]), CrossEntropy(), 0, base)
    np.testing.assert_array_equal(arrays["x"], [[1, 2], [3, 4.5], [5, -60]])
    assert arrays["y"].tolist() == [1, 0, 0]
    assert chosen.length(base) == 3
    swapped = Csv(path="data.csv", label="kind", features=["length", "width"])
    assert swapped.arrays(NUMBERS, CrossEntropy(), 0, base)["x"].tolist()[1] == [4.5, 3]


def test_whole_numbers_are_classes_unless_the_loss_compares_numbers(store):
    base = store("a,b,y\n1,2,0\n3,4,2\n")
    assert DATA.arrays(CLASSES, CrossEntropy(), 0, base)["y"].tolist() == [0, 2]
    assert DATA.arrays(NUMBERS, MSE(), 0, base)["y"].tolist() == [[0.0], [2.0]]


@for_each(
    ("label", "outputs", "loss"),
    [("2", 3, "cross_entropy"), ("cat", 3, "cross_entropy"), ("2.0", 1, "mse")],
)
def test_the_labels_decide_the_loss(store, label, outputs, loss):
    base = store(f"a,b,y\n1,2,{label}\n3,4,{label}\n")
    dataset = {"kind": "csv", "path": "data.csv", "label": "y"}
    assert scenario(base, dataset, outputs).workload.loss.kind == loss


def test_whole_numbers_of_an_npz_file_mean_cross_entropy(tmp_path):
    data = {"kind": "npz", "path": "data.npz"}
    x = np.ones((4, 2), np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=np.array([0, 1, 2, 1]))
    assert scenario(tmp_path, data).workload.loss.kind == "cross_entropy"
    np.savez(tmp_path / "data.npz", x=x, y=np.ones((4, 3), np.float32))
    assert scenario(tmp_path, data).workload.loss.kind == "mse"


def test_a_table_trains_as_the_same_arrays_from_npz(store):
    base = store("a,b,y\n" + "".join(f"{i / 7},{i * i / 9},{i % 3}\n" for i in range(8)))
    i = np.arange(8)
    np.savez(base / "data.npz", x=np.stack([i / 7, i * i / 9], axis=1), y=i % 3)
    table, arrays = (
        simdp.simulate(scenario(base, {"path": f"data.{kind}", "kind": kind, **label}))
        for kind, label in (("csv", {"label": "y"}), ("npz", {}))
    )
    assert table.metrics["loss"] == arrays.metrics["loss"]


@for_each(
    ("text", "message"),
    [
        (
            "a,b,y\n1,2,0\n1,x,0\n",
            "data.csv:3: b 'x' is not a number; give one, or list other features.",
        ),
        ("a,b,y\n1,inf,0\n", "data.csv:2: b inf is not finite; give a finite number."),
        ("a,b,y\n1,2\n", "data.csv:2: has 2 cells for 3 columns."),
        ("a,b,y\n1,2,\n", "data.csv:2: y is empty; leave the line out."),
        ("a,b,Y\n1,2,0\n", "data.csv:1: unknown column 'y'; known: a, b, Y."),
        ("a,a,y\n1,2,0\n", "data.csv:1: the column a is there twice."),
        (
            "a;b;y\n1;2;0\n",
            "data.csv:1: unknown column 'y'; known: a;b;y. Separate the columns by commas.",
        ),
        ("a,b,y\n", "data.csv: has no rows below its columns."),
        ("", "data.csv: has no lines."),
        ("y\n1\n", "data.csv: has no columns of features."),
        (
            "a,b,y\n1,2,0.5\n1,2,n/a\n",
            "data.csv:3: y 'n/a' is not a finite number, as others are; leave it out.",
        ),
        ('a,b,y\n1,"2,0\n', "data.csv:2: is not valid CSV: unexpected end of data."),
    ],
)
def test_what_is_wrong_is_said_with_its_line_and_column(store, text, message):
    base = store(text)
    with pytest.raises(ScenarioError) as caught:
        DATA.length(base)
    assert str(caught.value) == f"{base}/{message}"


@for_each(
    ("label", "model", "loss", "begins"),
    [
        ("1", MLP(widths=[3, 3]), CrossEntropy(), "data.csv has 2 columns of features, but"),
        ("cat", NUMBERS, MSE(), "y is text, 'cat' for example"),
    ],
)
def test_what_does_not_suit_the_model_or_the_loss_is_refused(store, label, model, loss, begins):
    base = store(f"a,b,y\n1,2,{label}\n")
    assert DATA.problem_with(model, loss, base).startswith(begins)


def test_a_table_is_bounded(store, monkeypatch):
    base = store("a,b,y\n1,2,0\n")
    monkeypatch.setattr(files, "MAX_CSV_BYTES", 8)
    with pytest.raises(ScenarioError, match="a larger table is stored as npz"):
        DATA.length(base)
