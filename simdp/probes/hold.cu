// Blocks that hold multiprocessors and move bytes, as the kernel of a collective does.
//
// Each block of 640 threads keeps about 90 registers a thread, NCCL's figures, so that hardly
// anything fits beside it on its multiprocessor. It copies a piece of its buffer at every tick of
// its pace, and polls in between, until `stop` is set or `limit_ns` have passed.

#include <cuda_runtime.h>

constexpr int THREADS = 640, UNROLL = 16;

__device__ unsigned long long now() {
  unsigned long long at;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(at));
  return at;
}

__global__ void __launch_bounds__(THREADS, 1)
hold(const float4* from, float4* to, long long pieces, long long period_ns, volatile int* stop,
     unsigned long long limit_ns, unsigned long long* moved) {
  extern __shared__ float4 held[];
  const long long piece = THREADS * UNROLL;  // float4 of one tick
  const float4* mine = from + blockIdx.x * pieces * piece;
  float4* out = to + blockIdx.x * pieces * piece;
  const unsigned long long start = now();
  unsigned long long ticks = 0;
  __shared__ int turn;
  while (true) {
    if (threadIdx.x == 0) {
      const unsigned long long since = now() - start;
      const bool ends = *stop || since >= limit_ns;
      turn = ends ? 2 : (period_ns > 0 && since >= ticks * period_ns);
    }
    __syncthreads();
    const int current = turn;
    __syncthreads();
    if (current == 2) break;
    if (current == 0) continue;
    const long long at = (ticks % pieces) * piece + threadIdx.x;
    float4 value[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; i++) value[i] = mine[at + i * THREADS];
#pragma unroll
    for (int i = 0; i < UNROLL; i++) out[at + i * THREADS] = value[i];
    ticks++;
  }
  if (threadIdx.x == 0) {
    held[0].x = 0.0f;
    moved[2 * blockIdx.x] = ticks * piece * 2 * sizeof(float4);
    moved[2 * blockIdx.x + 1] = now() - start;
  }
}

extern "C" int launch(int blocks, int shared_bytes, const void* from, void* to, long long pieces,
                      long long period_ns, void* stop, unsigned long long limit_ns, void* moved,
                      void* stream) {
  cudaFuncSetAttribute(hold, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  hold<<<blocks, THREADS, shared_bytes, (cudaStream_t)stream>>>(
      (const float4*)from, (float4*)to, pieces, period_ns, (volatile int*)stop, limit_ns,
      (unsigned long long*)moved);
  return (int)cudaGetLastError();
}

extern "C" int piece_bytes() { return THREADS * UNROLL * (int)sizeof(float4); }
