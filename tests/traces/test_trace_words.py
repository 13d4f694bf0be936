from for_each import for_each

from simdp.traces.gathering import (
    COLLECTIVES,
    collective_name,
    dtype_name,
    is_communication,
    kernel_name,
)


@for_each(
    ("written", "name"),
    [
        ("allreduce", "all_reduce"),
        ("nccl:all_reduce", "all_reduce"),
        ("c10d::allreduce_", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("nccl:_all_gather_base", "all_gather"),
        ("c10d::allgather_into_tensor_coalesced_", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("REDUCE_SCATTER_coalesced", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("c10d::recv_any_source_", "recv"),
        ("nccl:send 0->1", "send"),
        ("gloo:broadcast", "broadcast"),
        ("coalesced", "send_recv"),
        ("wait", ""),
        ("", ""),
    ],
)
def test_names_of_collectives(written, name):
    assert collective_name(written) == name
    assert name == "" or collective_name(name) == name
    assert name == "" or name in COLLECTIVES


@for_each(
    ("written", "said"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "all_reduce RING LL float32"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "all_reduce RING LL float32"),
        ("ncclKernel_AllReduce_TREE_LL128_Sum___nv_bfloat16(x)", "all_reduce TREE LL128 bfloat16"),
        (
            "ncclDevKernel_AllReduce_Sum_f16_NVLS_TREE_SIMPLE(x)",
            "all_reduce NVLS_TREE SIMPLE float16",
        ),
        ("ncclKernel_AllReduce_RING_SIMPLE_Sum_int64_t(x)", "all_reduce RING SIMPLE int64"),
        (
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_SIMPLE(x)",
            "reduce_scatter RING SIMPLE bfloat16",
        ),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(x)", "all_gather RING LL "),
        ("ncclDevKernel_Broadcast_RING_LL(x)", "broadcast RING LL "),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", "send_recv RING SIMPLE "),
        ("ncclDevKernel_SendRecv(x)", "send_recv   "),
        ("ncclDevKernel_AllReduce bucket 0", "all_reduce   "),
        ("void at::native::reduce_kernel<512>(x)", "   "),
    ],
)
def test_names_of_kernels_old_and_new(written, said):
    assert " ".join(kernel_name(written)) == said
    assert is_communication(written) == written.startswith("nccl")


@for_each(
    ("written", "name"),
    [
        ("Float", "float32"),
        ("c10::BFloat16", "bfloat16"),
        ("long int", "int64"),
        ("torch.float16", "float16"),
        ("Byte", "uint8"),
        ("Float8_e4m3fn", "float8_e4m3fn"),
        ("TensorList", ""),
        (None, ""),
    ],
)
def test_names_of_types(written, name):
    assert dtype_name(written) == name
