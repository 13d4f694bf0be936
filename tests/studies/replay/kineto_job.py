"""A job of torch's DDP as its profiler writes it, from a few figures, in microseconds."""

from simdp.studies.replay.timeline import BACKWARD, FORWARD, UPDATE
from tests.kineto import NCCL, document, event, kernel, launch, put, record, said, step

LAYERS = 6
NBYTES = 4 * 600_000

GEMM = "ampere_sgemm_128x64_tn"


class Job:
    """Steps whose host launches a kernel every ``every``; each takes ``busy`` on the device.

    Forward has a kernel per layer, backward two, and a gradient behind them; gradients travel in
    two buckets, and then all ranks update. A slow phase takes half as long again; ranks that meet
    have an all_to_all behind forward.
    """

    def __init__(
        self,
        every=100.0,
        busy=20.0,
        lead=0.0,
        loading=0.0,
        transfer=300.0,
        size=2,
        slow=None,
        meets=False,
        product=GEMM,
    ):
        self.slow, self.meets, self.phase, self.product = slow, meets, FORWARD, product
        self.every, self.busy, self.lead, self.loading = every, busy, lead, loading
        self.transfer, self.size = transfer, size
        self.events, self.number = [], 0
        self.device = self.stream = 0.0

    def kernel(self, host, tid, name=None, after=0.0):
        """Launch a kernel, which begins when the device is free."""
        self.number += 1
        begin = max(host + 5, self.device, after)
        took = self.busy * (1.5 if self.phase == self.slow else 1.0)
        self.device = begin + took
        self.events += [
            launch(self.number, host, 4, tid),
            kernel(self.number, begin, took, name or self.product),
        ]

    def all_reduce(self, host, elements, tid, name="allreduce"):
        """Launch one that takes as long as its bytes do."""
        self.number += 1
        begin = max(host + 5, self.stream, self.device)
        self.stream = begin + self.transfer * 4 * elements / NBYTES
        fields = said(name, elements, size=self.size)
        self.events += [
            record(host - 1, 3, name, elements, size=self.size, tid=tid),
            launch(self.number, host, 4, tid),
            kernel(self.number, begin, self.stream - begin, NCCL, stream=20, **fields),
        ]

    def one(self, number, begin):
        """A step; gives the host's time behind it."""
        now, self.phase = begin, FORWARD
        if self.loading:
            name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            self.events.append(event("user_annotation", name, now, self.loading))
            now += self.loading
        now += self.lead
        for _ in range(LAYERS):
            self.kernel(now, 100)
            now += self.every
        if self.meets:
            self.all_reduce(now - 1, 1000, 100, "all_to_all")
        self.phase = BACKWARD
        elements = NBYTES // 4
        for layer in range(LAYERS):
            name = "autograd::engine::evaluate_function: AddmmBackward0"
            self.events.append(event("cpu_op", name, now - 2, 2 * self.every, 200))
            for _ in range(2):
                self.kernel(now, 200)
                now += self.every
            grad = "torch::autograd::AccumulateGrad"
            self.events.append(event("cpu_op", grad, now - 5, 4, 200))
            if layer == LAYERS // 2 - 1:
                self.all_reduce(now - 2, elements * 2 // 3, 200)
        self.all_reduce(now - 2, elements // 3, 200)
        self.phase = UPDATE
        name = "Optimizer.step#AdamW.step"
        self.events.append(event("user_annotation", name, now, self.every))
        self.kernel(now + 1, 100, "multi_tensor_apply_kernel", self.stream)
        now += self.every
        self.events.append(step(number, begin, now - begin))
        return now

    def write(self, path, rank=0, steps=4, **fields):
        """Some steps, as a file."""
        now = 1000.0
        for number in range(steps):
            now = self.one(number + 3, now)
        return put(path, document(self.events, rank, self.size, **fields))
