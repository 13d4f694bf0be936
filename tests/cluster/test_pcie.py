"""PCIe trees, and nodes as nvidia-smi prints them: what is direct, what is staged, and how wide."""

import numpy as np
import pytest
from for_each import for_each
from networks import LINK, TOPO, bisection, example, pairs, route
from pydantic import TypeAdapter, ValidationError

from simdp.cluster.hardware import Link
from simdp.cluster.topologies import AnyTopology
from simdp.cluster.topologies.pcie import MatrixError, NvidiaSmiTopology, parse_matrix

NVLINK = Link(alpha="1 us", bandwidth="150 GB/s")


def tree(**keys):
    return TypeAdapter(AnyTopology).validate_python({"kind": "pcie_tree", **keys})


def smi(**keys):
    return TypeAdapter(AnyTopology).validate_python({"kind": "nvidia_smi", **keys})


def named(topology, src, dst, n, cards=1):
    """The hubs that a route passes, with a bar before each stage."""
    links = topology.routes(np.array([src]), np.array([dst]), n, cards)[0]
    links = links[links >= 0]
    leaves, _ = topology.ends(links, n, cards)
    begins = topology.begins_stage(links, n, cards)
    passed = [
        ("| " if stage else "") + topology.switch_name(int(vertex), n, cards)
        for vertex, stage in zip(leaves, begins, strict=True)
        if vertex >= n + topology.num_cards(cards)
    ]
    return ", ".join(passed)


def narrowest(topology, src, dst, n, link, cards=1):
    """Bandwidth of a route whose stages add up [bytes/s]."""
    links = topology.routes(np.array([src]), np.array([dst]), n, cards)[0]
    links = links[links >= 0]
    _, bandwidth = topology.figures(links, link, n, cards)
    stages = np.cumsum(topology.begins_stage(links, n, cards))
    return 1 / sum(1 / bandwidth[stages == stage].min() for stage in range(stages[-1] + 1))


# The PCIe tree -----------------------------------------------------------------------------------


def test_devices_on_one_switch_reach_each_other_directly():
    assert named(tree(), 0, 1, 8) == "PCIe switch 0"
    assert narrowest(tree(), 0, 1, 8, LINK) == 6e9


def test_across_the_host_bridge_bytes_go_into_host_memory_and_out_again():
    assert named(tree(), 0, 2, 8) == (
        "PCIe switch 0, CPU 0, | the memory of CPU 0, CPU 0, PCIe switch 1"
    )
    assert narrowest(tree(), 0, 2, 8, LINK) == pytest.approx(3e9)


def test_across_sockets_they_are_stored_beside_the_receiver():
    assert named(tree(), 0, 7, 8) == (
        "PCIe switch 0, CPU 0, the CPU interconnect, CPU 1, | the memory of CPU 1, CPU 1, "
        "PCIe switch 3"
    )
    slow = tree(inter_socket="2 GB/s")
    assert narrowest(slow, 0, 7, 8, LINK) == pytest.approx(1 / (1 / 2e9 + 1 / 6e9))


@for_each(
    ("level", "staged"),
    [
        ("loc", [1, 1, 1]),
        ("pix", [0, 1, 1]),
        ("pxb", [0, 1, 1]),
        ("phb", [0, 0, 1]),
        ("node", [0, 0, 1]),
        ("sys", [0, 0, 0]),
    ],
)
def test_the_level_of_peer_to_peer_can_be_chosen(level, staged):
    found = [named(tree(p2p_level=level), 0, dst, 8).count("|") for dst in (1, 2, 4)]
    assert found == staged


def test_only_links_at_devices_have_a_latency():
    links = tree().routes(np.array([0]), np.array([7]), 8)[0]
    alpha, _ = tree().figures(links, LINK, 8)
    assert alpha[0] == alpha[-1] == 1e-6
    assert (alpha[1:-1] == 0).all()


def test_defaults_of_sockets_and_memory_are_those_of_their_sources():
    assert tree().inter_socket == 10e9
    assert tree().host_memory == pytest.approx(127.968e9)


def test_cards_are_spread_over_the_switches():
    cards = 4
    places = [named(tree(), 2 * k, 8 + k, 8, cards) for k in range(cards)]
    assert places == ["PCIe switch 0", "PCIe switch 1", "PCIe switch 2", "PCIe switch 3"]
    assert named(tree(), 0, 8 + 1, 8, cards).count("|") == 1
    assert named(tree(), 0, 8 + 1, 8, 8) == "PCIe switch 0"
    assert [named(tree(), gpu, 8, 8, 1) for gpu in (0, 1)] == ["PCIe switch 0"] * 2


def test_one_socket_needs_no_interconnect():
    links = np.arange(tree().num_links(4))
    ends = np.concatenate(tree().ends(links, 4))
    names = {tree().switch_name(int(v), 4) for v in ends if v > 4}
    assert names == {"PCIe switch 0", "PCIe switch 1", "CPU 0", "the memory of CPU 0"}


# nvidia-smi topo -m ------------------------------------------------------------------------------


def test_a_dgx1_has_the_nvlinks_of_a_cube_mesh():
    dgx, mesh = example("nvidia_smi_dgx1"), example("cube_mesh")
    src, dst = pairs(8)
    mine, its = dgx.routes(src, dst, 8), mesh.routes(src, dst, 8)
    for a, b in zip(mine, its, strict=True):
        a, b = a[a >= 0], b[b >= 0]
        assert [end.tolist() for end in dgx.ends(a, 8)] == [e.tolist() for e in mesh.ends(b, 8)]
        assert dgx.figures(a, NVLINK, 8)[1] == pytest.approx(mesh.figures(b, NVLINK, 8)[1])
    assert bisection(mesh, range(4), 8) == pytest.approx(1)


def test_the_cards_of_a_dgx1_hang_on_the_switches_of_their_gpus():
    dgx = example("nvidia_smi_dgx1")
    assert [named(dgx, gpu, 8, 8, 4) for gpu in (0, 1)] == ["PCIe switch 0"] * 2
    assert named(dgx, 2, 8, 8, 4) == (
        "PCIe switch 1, CPU 0, | the memory of CPU 0, CPU 0, PCIe switch 0"
    )
    assert narrowest(dgx, 0, 8, 8, NVLINK, 4) == pytest.approx(15.75e9)


def test_gpus_of_a_dgx_a100_meet_in_an_nvswitch():
    dgx = example("nvidia_smi_a100")
    assert dgx.parsed.cards == tuple(f"NIC{k}" for k in range(8))
    assert all(
        named(dgx, src, dst, 8) == "the NVSwitch" for src, dst in zip(*pairs(8), strict=True)
    )
    assert narrowest(dgx, 0, 5, 8, NVLINK) == NVLINK.bandwidth
    between_sockets = 10e9 / NVLINK.bandwidth
    assert bisection(dgx, range(4), 8, 0, NVLINK) == pytest.approx(4 + between_sockets)
    assert named(dgx, 0, 8, 8, 8) == "PCIe switch 0"
    assert named(dgx, 0, 8 + 2, 8, 8).count("|") == 1
    assert named(dgx, 0, 8 + 7, 8, 8).count("the CPU interconnect") == 1


def test_a_box_without_nvlinks_is_a_pcie_tree():
    box = example("nvidia_smi_pcie")
    assert named(box, 0, 1, 8) == "PCIe switch 0"
    assert named(box, 0, 2, 8).count("|") == 1  # PHB
    assert named(box, 4, 6, 8) == (  # NODE: two host bridges, each drawn into its only switch
        "PCIe switch 2, CPU 1, | the memory of CPU 1, CPU 1, PCIe switch 3"
    )
    assert named(box, 6, 7, 8) == "PCIe switch 3"  # PXB
    assert named(box, 0, 7, 8).count("the CPU interconnect") == 1
    assert narrowest(box, 0, 1, 8, LINK) == 6e9


def matrix(*rows):
    names = [f"GPU{i}" for i in range(len(rows))]
    lines = [" ".join(names)]
    return "\n".join(lines + [f"{name} {row}" for name, row in zip(names, rows, strict=True)])


def test_a_level_that_one_direct_switch_lacks_lies_between():
    box = smi(matrix=matrix("X PIX PXB PHB", "PIX X PXB PHB", "PXB PXB X PHB", "PHB PHB PHB X"))
    assert named(box, 0, 1, 4) == "PCIe switch 1"
    assert named(box, 0, 2, 4) == "PCIe switch 1, PCIe switch 0"
    assert named(box, 0, 3, 4) == (
        "PCIe switch 1, PCIe switch 0, CPU 0, | the memory of CPU 0, CPU 0"
    )


def test_pairs_of_bridged_gpus_use_their_nvlinks_and_pcie_for_the_rest():
    box = smi(
        matrix=matrix("X NV4 SYS SYS", "NV4 X SYS SYS", "SYS SYS X NV4", "SYS SYS NV4 X"),
        pcie="pcie4-x16",
    )
    assert route(box, 0, 1, 4) == [0, 1]
    assert narrowest(box, 0, 1, 4, NVLINK) == NVLINK.bandwidth
    assert named(box, 0, 2, 4).count("|") == 1
    assert narrowest(box, 0, 2, 4, NVLINK) < 10e9


def test_counts_beyond_the_nvlinks_of_a_gpu_mean_a_switch():
    text = matrix("X NV6 NV6", "NV6 X NV6", "NV6 NV6 X")
    direct, switched = smi(matrix=text), smi(matrix=text, nvlinks=6)
    assert route(direct, 0, 1, 3) == [0, 1]
    assert narrowest(direct, 0, 1, 3, NVLINK) == pytest.approx(75e9)
    assert named(switched, 0, 1, 3) == "the NVSwitch"
    assert narrowest(switched, 0, 1, 3, NVLINK) == 150e9


def test_nvlinks_by_way_of_two_other_gpus_are_not_taken():
    chain = matrix("X NV2 SYS SYS", "NV2 X NV2 SYS", "SYS NV2 X NV2", "SYS SYS NV2 X")
    box = smi(matrix=chain, pcie="pcie3-x16")
    assert route(box, 0, 2, 4) == [0, 1, 2]
    assert "CPU" in named(box, 0, 3, 4)


def test_a_node_may_use_some_of_the_gpus():
    dgx = example("nvidia_smi_dgx1")
    assert dgx.num_links(2, 0) < dgx.num_links(8, 0)
    assert route(dgx, 1, 0, 2, 0) == [1, 0]


@for_each("file", ["dgx1_v100.txt", "dgx_a100.txt", "pcie_box.txt"])
def test_a_file_and_its_text_are_the_same_node(file):
    from_file = NvidiaSmiTopology.model_validate({"path": file}, context={"base": TOPO})
    written = smi(matrix=(TOPO / file).read_text())
    assert from_file.parsed == written.parsed
    assert len(written.parsed.gpus) == 8


def test_what_a_file_held_is_not_written_down_but_the_path_is():
    read = NvidiaSmiTopology.model_validate({"path": "pcie_box.txt"}, context={"base": TOPO})
    dumped = read.model_dump(mode="json", exclude_none=True)
    assert dumped["path"] == "pcie_box.txt"
    assert "matrix" not in dumped
    again = NvidiaSmiTopology.model_validate(dumped, context={"base": TOPO})
    assert again == read


def test_the_older_name_of_sys_is_understood():
    assert parse_matrix("GPU0 GPU1\nGPU0 X SOC\nGPU1 SOC X") == parse_matrix(
        matrix("X SYS", "SYS X")
    )


@for_each(
    ("text", "line", "reason"),
    [
        ("", 1, "names no GPUs; begin with the line GPU0 GPU1 ..."),
        ("mlx5_0\nmlx5_0 X", 1, "names no GPUs; begin with the line GPU0 GPU1 ..."),
        ("GPU0 GPU0", 1, "names GPU0 twice."),
        ("GPU0 GPU1\nGPU0 X PIX", 2, "is not square: GPU1 has a column, but no row follows."),
        ("GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX", 3, "is not square: GPU1 has 1 entries for 2 columns."),
        ("GPU0\nGPU0 X\nGPU1 PIX", 3, "is not square: GPU1 has a row, but no column."),
        ("\nGPU0 GPU1\nGPU0 X PIX\nGPU0 X PIX", 4, "gives GPU0 a second row."),
        (
            "GPU0 GPU1\nGPU0 X FAR\nGPU1 FAR X",
            2,
            "has 'FAR' between GPU0 and GPU1; known: X, NV1, NV2, ..., PIX, PXB, PHB, NODE, SYS.",
        ),
        (
            "GPU0 GPU1\nGPU0 X PIX\nGPU1 PXB X",
            3,
            "is not symmetric: GPU1 to GPU0 is PXB, GPU0 to GPU1 is PIX.",
        ),
        ("GPU0 GPU1\nGPU0 X X\nGPU1 X X", 2, "has X between GPU0 and GPU1; X means itself."),
        ("GPU0\nGPU0 PIX", 2, "has PIX between GPU0 and GPU0; X means itself."),
    ],
)
def test_a_malformed_matrix_is_refused_with_its_line_and_the_reason(text, line, reason, tmp_path):
    with pytest.raises(MatrixError) as caught:
        parse_matrix(text)
    assert (caught.value.line, str(caught.value)) == (line, reason)
    (tmp_path / "topo.txt").write_text(text)
    with pytest.raises(ValidationError) as refused:
        NvidiaSmiTopology.model_validate({"path": "topo.txt"}, context={"base": tmp_path})
    assert refused.value.errors()[0]["msg"] == f"{tmp_path / 'topo.txt'}:{line}: {reason}"


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValidationError) as refused:
        NvidiaSmiTopology.model_validate({"path": "none.txt"}, context={"base": tmp_path})
    assert refused.value.errors()[0]["msg"] == f"{tmp_path / 'none.txt'}: there is no such file."


@for_each("keys", [{}, {"path": "a.txt", "matrix": "GPU0\nGPU0 X"}])
def test_either_a_file_or_the_text_is_needed(keys):
    with pytest.raises(ValidationError) as refused:
        smi(**keys)
    assert refused.value.errors()[0]["msg"] == (
        "give either path, a file with the output of nvidia-smi topo -m, or matrix."
    )


def test_pcie_is_asked_for_where_it_is_used_beside_nvlinks():
    dgx = smi(path=str(TOPO / "dgx1_v100.txt"))
    assert dgx.problem_with(8, 0) is None
    assert dgx.problem_with(8, 4) == (
        "nvidia_smi needs the PCIe link that network cards use; add pcie: pcie4-x16."
    )
    assert dgx.problem_with(8, 5) == (
        "nvidia_smi shows 4 network cards for links_per_node 5; "
        "use 4 or fewer, or leave the cards' rows and columns out."
    )
    apart = smi(matrix=matrix("X NV1 SYS", "NV1 X SYS", "SYS SYS X"))
    assert apart.problem_with(3, 0) == (
        "nvidia_smi needs the PCIe link that some GPUs use; add pcie: pcie4-x16."
    )
    assert apart.problem_with(2, 0) is None
