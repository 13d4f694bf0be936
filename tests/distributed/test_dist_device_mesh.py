"""Device meshes: where ranks are, their groups, parts of meshes, and what is refused."""

import numpy as np
from for_each import for_each

import simdp.distributed as dist
from simdp.distributed.groups import DeviceMesh, init_device_mesh


def test_a_mesh_has_a_group_along_each_dimension(run):
    def program(rank):
        mesh = dist.init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
        total = np.full(1, float(rank))
        dist.all_reduce(total, group=mesh.get_group("dp"))
        return (
            total[0],
            dist.get_process_group_ranks(mesh.get_group(1)),
            [dist.get_world_size(group) for group in mesh.get_all_groups()],
            (mesh.get_rank(), mesh.get_local_rank("dp"), mesh.get_local_rank(-1)),
            mesh.get_coordinate(),
            mesh.get_group("dp").group_desc,
        )

    found = run(program, 8).values
    for rank, (total, row, sizes, ranks, where, desc) in enumerate(found):
        assert total == 2 * (rank % 4) + 4
        assert row == [4 * (rank // 4) + i for i in range(4)]
        assert sizes == [2, 4]
        assert ranks == (rank, *where) == (rank, rank // 4, rank % 4)
        assert desc == "mesh_dp"


def test_a_mesh_tells_its_shape(run):
    def program(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        assert mesh.mesh.tolist() == [[0, 1], [2, 3]]
        asked = mesh.shape, mesh.ndim, mesh.size(), mesh.size(1), mesh.mesh_dim_names
        return *asked, mesh.device_type, repr(mesh), repr(init_device_mesh("cpu", [4]))

    names = ("dp", "tp")
    expected = ((2, 2), 2, 4, 2, names, "cpu", "DeviceMesh((dp=2, tp=2), 'cpu')")
    assert run(program).values == [(*expected, "DeviceMesh((4), 'cpu')")] * 4


def test_parts_of_a_mesh_have_its_groups(run):
    def program(rank):
        mesh = init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=("dp", "pp", "tp"))
        tp, flat = mesh["tp"], mesh["dp", "tp"]
        assert tp.get_group() == mesh.get_group("tp")
        assert mesh["dp", "pp", "tp"] is mesh
        assert flat["tp"].mesh.tolist() == tp.mesh.tolist()
        return tp.mesh.tolist(), tp.get_local_rank(), flat.mesh.tolist(), flat.get_coordinate()

    assert run(program, 8).values[6] == ([6, 7], 0, [[2, 3], [6, 7]], (1, 0))


def test_a_mesh_of_one_dimension_is_the_default_group_and_makes_it(box):
    def program(rank):
        mesh = init_device_mesh("cuda", (4,))
        assert mesh.get_group() == dist.group.WORLD
        return mesh.get_local_rank(), dist.is_initialized()

    assert dist.launch(program, cluster=box).values == [(rank, True) for rank in range(4)]


def test_ranks_may_lie_anywhere_or_nowhere_in_a_mesh(run):
    def program(rank):
        mesh = DeviceMesh("cuda", [[3, 0]], mesh_dim_names=("a", "b"))
        if rank in (1, 2):
            none = dist.GroupMember.NON_GROUP_MEMBER
            return mesh.get_coordinate(), all(group is none for group in mesh.get_all_groups())
        return mesh.get_local_rank("b"), dist.get_process_group_ranks(mesh.get_group("b"))

    assert run(program).values == [(1, [0, 3]), (None, True), (None, True), (0, [0, 3])]


def test_dimensions_may_have_backends_of_their_own(run):
    def program(rank):
        how = {"tp": "gloo", 0: ("mpi", object())}
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"), backend_override=how)
        return [dist.get_backend(group) for group in mesh.get_all_groups()]

    assert run(program).values == [["mpi", "gloo"]] * 4


@for_each(
    ("call", "said"),
    [
        (
            lambda: init_device_mesh("cuda", (2, 2)),
            "init_device_mesh: mesh_shape (2, 2) must be whole numbers >= 1 whose product is at "
            "most 2, the number of ranks.",
        ),
        (
            lambda: init_device_mesh("cuda", ()),
            "init_device_mesh: mesh_shape () must be whole numbers >= 1 whose product is at most "
            "2, the number of ranks.",
        ),
        (
            lambda: init_device_mesh("cuda:0", (2,)),
            "init_device_mesh: device_type is 'cuda:0'; give 'cuda' or 'cpu'.",
        ),
        (
            lambda: init_device_mesh("cuda", (2, 1), mesh_dim_names=("a",)),
            "init_device_mesh: mesh_dim_names ('a',) must name each of 2 dimensions differently.",
        ),
        (
            lambda: init_device_mesh("cuda", (2, 1), mesh_dim_names=("a", "a")),
            "init_device_mesh: mesh_dim_names ('a', 'a') must name each of 2 dimensions "
            "differently.",
        ),
        (
            lambda: init_device_mesh("cuda", (2,), backend_override={"dp": "gloo"}),
            "init_device_mesh: backend_override has 'dp', which is no dimension.",
        ),
        (
            lambda: DeviceMesh("cuda", [0, 2]),
            "init_device_mesh: mesh [0, 2] must hold ranks of 0 ... 1, each once.",
        ),
        (
            lambda: DeviceMesh("cuda", [0, 0]),
            "init_device_mesh: mesh [0, 0] must hold ranks of 0 ... 1, each once.",
        ),
    ],
)
def test_a_wrong_mesh_is_one_line(refused, call, said):
    assert refused(lambda rank: call() if rank == 0 else None) == said


@for_each(
    ("ask", "said"),
    [
        (
            lambda mesh: mesh.get_group(),
            "get_group: None is not a dimension of DeviceMesh((dp=2, tp=2), 'cuda').",
        ),
        (
            lambda mesh: mesh.get_local_rank("pp"),
            "get_local_rank: 'pp' is not a dimension of DeviceMesh((dp=2, tp=2), 'cuda').",
        ),
        (
            lambda mesh: mesh["pp"],
            "mesh['pp']: 'pp' is not a dimension of DeviceMesh((dp=2, tp=2), 'cuda').",
        ),
        (
            lambda mesh: mesh["tp", "dp"],
            "mesh['tp', 'dp']: give dimensions of DeviceMesh((dp=2, tp=2), 'cuda') in their order, "
            "each once, on a rank that is in it.",
        ),
    ],
)
def test_a_dimension_that_is_not_there_is_one_line(refused, ask, said):
    def program(rank):
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
        if rank == 0:
            ask(mesh)

    assert refused(program, 4) == said


def test_a_rank_outside_has_no_place(refused):
    def program(rank):
        mesh = init_device_mesh("cuda", (1,))
        if rank == 1:
            mesh.get_local_rank()

    assert refused(program) == "get_local_rank: rank 1 is not in DeviceMesh((1), 'cuda')."
