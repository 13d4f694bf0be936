"""What a picture is of, in one line."""

from for_each import for_each

from simdp.reports.captions import about_scenario, cluster_name, model_name


@for_each(
    ("model", "name"),
    [
        ("gpt2", "gpt2"),
        ({"kind": "mlp", "widths": [64, 32, 10]}, "mlp 64-32-10"),
        ({"kind": "mlp", "widths": [8] * 9}, "mlp"),
        ({"kind": "parameters", "num_params": 7_500_000_000}, "7,500,000,000 parameters"),
        ({"kind": "profile", "path": "data/layers.csv"}, "layers of layers.csv"),
        ({"kind": "einsum", "equation": "bd,df->bf"}, "einsum"),
        (None, ""),
    ],
)
def test_a_model_is_named(model, name):
    assert model_name({"model": model}) == name


def test_a_resolved_preset_has_its_name_again():
    from pydantic import TypeAdapter

    from simdp.workload.models import AnyModel

    made = TypeAdapter(AnyModel).validate_python("resnet50").model_dump(mode="json")
    assert model_name({"model": made}) == "resnet50"
    assert model_name({"model": {**made, "num_classes": 10}}) == "resnet50"
    assert model_name({"model": {**made, "width_multiplier": 0.5}}) == "resnet"


CLUSTER = {
    "world_size": 16,
    "devices_per_node": 4,
    "device": {"name": "t4-16gb"},
    "topology": {"kind": "ring"},
}


def test_a_cluster_is_named_without_what_varies():
    assert cluster_name(CLUSTER) == "16 × t4-16gb in 4 nodes, ring"
    assert cluster_name(CLUSTER, ["cluster.world_size"]) == "t4-16gb, ring"
    assert cluster_name(CLUSTER, ["cluster.device", "cluster.topology.kind"]) == (
        "16 ranks in 4 nodes"
    )
    assert cluster_name({"machine": "dgx-1", "world_size": 8}) == "8 × dgx-1"
    mixed = {"world_size": 2, "device": [{"name": "t4-16gb"}, {"name": "l4-24gb"}]}
    assert cluster_name(mixed) == "2 × t4-16gb and l4-24gb"


def test_a_line_joins_model_cluster_and_method():
    scenario = {"workload": {"model": "gpt2"}, "cluster": CLUSTER, "strategy": {"kind": "ddp"}}
    assert about_scenario(scenario, []) == "gpt2 · 16 × t4-16gb in 4 nodes, ring · ddp"
    assert about_scenario(scenario, ["strategy"]).endswith("ring")
    assert about_scenario(scenario, ["workload.model"]).startswith("16 ×")
    assert about_scenario(scenario, ["workload.model.n_layer"]).startswith("16 ×")
    assert about_scenario(scenario, ["workload.model.sequence_length"]).startswith("gpt2 ·")
    assert about_scenario({}, []) == ""
