"""One table sorts kernels by their names: real ones of cuBLAS, cuDNN, Triton, NCCL and others."""

import ast
from pathlib import Path

import pytest

import simdp
from simdp.traces import kernels
from simdp.traces.kernels import is_communication, is_product, kernel_kind

NAMES = {
    "product": [
        "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNN",
        "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN",
        "ampere_sgemm_128x64_nn",
        "volta_sgemm_64x32_sliced1x4_nn",
        "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x64x64_stage4_warpsize2x2x1_cublas",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x64_64x3_nn_align2>()",
        "void gemvNSP_kernel<float, float, float, float, 1, 16, 4, 1024, cublasGemvParams<int>>()",
        "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensorStridedBatched<float>>>()",
        "Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x32_MI16x16x1_SN_LDSB1",
        "triton_mm",
        "triton_mm_plus_mm",
        "triton_tem_fused_mm_0",
        "triton_tem_fused_addmm_relu_1",
        "triton_tem_fused__softmax_bmm_3",
        "aten::mm",
        "aten::addmm",
        "aten::linear",
        "aten::_scaled_mm",
        "forward layers.0.linear1",
    ],
    "convolution": [
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_execute_kernel_cudnn",
        "sm90_xmma_wgrad_indexed_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc__5x_cudnn",
        "cudnn_infer_volta_scudnn_128x64_relu_xregs_large_nn_v1",
        "cudnn_train_volta_scudnn_128x64_stridedB_splitK_xregs_large_nn_v1",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::Params)",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816dgrad_optimized_bf16>()",
        "_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_11threadblock",
        "void fft2d_r2c_32x32<float, false, 0u, false>(float2*, cudnn::reduced_divisor, int)",
        "void conv2d_grouped_direct_kernel<float>(cudnnTensorStruct, cudnn::reduced_divisor)",
        "miopenSp3AsmConv_v30_3_1_gfx90a_fp32_f2x3_stride1",
        "triton_tem_fused_convolution_2",
        "aten::mkldnn_convolution",
    ],
    "attention": [
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>()",
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<cutlass::Shape>>>",
        "fmha_cutlassB_bf16_aligned_128x64_k64_sm80(PyTorchMemEffAttention::Params)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_kernel0_0",
        "triton_tem_fused_flex_attention_0",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
    ],
    "collective": [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "rcclGenericKernel_2(ncclDevKernelArgsStorage<4096ul>)",
    ],
    "copy": [
        "Memcpy DtoD (Device -> Device)",
        "CopyDeviceToDevice",
        "__amd_rocclr_copyBuffer",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>()",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda()>()",
        "triton_poi_fused__to_copy_3",
        "aten::copy_",
    ],
    "memset": ["Memset (Device)", "__amd_rocclr_fillBufferAligned"],
    "optimizer": [
        "void at::native::multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata"
        "<4>, at::native::FusedAdamMathFunctor<float, 4>>()",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>>()",
        "aten::_fused_adamw_",
    ],
    "reduction": [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>()",
        "void splitKreduce_kernel<32, 16, int, float>(cublasSplitKParams<float>, float const*)",
        "void cutlass__5x_cudnn::Kernel<cutlass__5x_cudnn::reduction::kernel::ReduceSplitK<int>>",
        "void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>(void*, void const*, float, int)",
        "void cudnn::bn_bw_1C11_singleread<float, 512, true, 1, 2, 0>()",
        "void at::native::batch_norm_collect_statistics_kernel<at::native::Var, float>()",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>()",
        "triton_red_fused_native_layer_norm_mm_4",
        "triton_per_fused_addmm_native_layer_norm_0",
    ],
    "elementwise": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>()",
        "void at::native::multi_tensor_apply_kernel<at::native::BinaryOpListAlphaFunctor<int>>()",
        "void at::native::upsample_bilinear2d_out_frame<float, float>(int, float)",
        "triton_poi_fused_convolution_relu_1",
        "triton_poi_fused_addmm_gelu_5",
        "triton_poi_fused_mm_2",
        "triton_for_fused_0",
        "triton__0d1d2de",
    ],
    "other": [
        "void linearize_index_kernel<long>(at::GenericPackedTensorAccessor<long, 1ul>)",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<long, long>()",
        "void scal_kernel<float, float, 1>(cublasTransposeParams<float>, float const*)",
        "convert_fp8_kernel",
    ],
}


@pytest.mark.parametrize("kind", NAMES)
def test_a_kernel_is_sorted_by_its_name(kind):
    assert {name: kernel_kind(name) for name in NAMES[kind]} == dict.fromkeys(NAMES[kind], kind)


def test_products_and_collectives_are_those_of_the_table():
    names = [name for listed in NAMES.values() for name in listed]
    products = [n for kind in ("product", "convolution", "attention") for n in NAMES[kind]]
    assert [name for name in names if is_product(name)] == products
    assert [name for name in names if is_communication(name)] == NAMES["collective"]


def test_no_other_module_sorts_kernels():
    """Words that only kernels' names hold are in strings of the table alone."""
    words = ("gemm", "nvjet", "cutlass", "xmma", "fmha", "wgrad", "nchwto", "triton_", "cijk")
    root = Path(simdp.__file__).parent
    elsewhere = []
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not any(word in text.lower() for word in words):
            continue
        tree = ast.parse(text)
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                is_word = any(word in node.value.lower() for word in words)
                if is_word and id(node) not in docs:
                    elsewhere.append(path)
    assert set(elsewhere) == {Path(kernels.__file__)}
