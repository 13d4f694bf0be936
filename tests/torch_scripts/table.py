"""The scripts: how each is started, and how near its weights come to those of real processes."""

from typing import NamedTuple


class Script(NamedTuple):
    """A script as people start it.

    Attributes
    ----------
    ranks : int
        Processes.
    launched : bool
        Whether torchrun starts them, or the script itself does.
    args : tuple of str
        Its own; ``PORT`` is a free one, ``RANKS`` their number.
    devices : int
        GPUs that a script without torchrun finds.
    shim : bool
        Whether it names CUDA and nothing else, so that real processes run it with "cpu" for "cuda".
    within : float
        Relative error that is allowed; 0 is to the bit.
    why : str
        The reason, if it is not 0.
    """

    ranks: int
    launched: bool = True
    args: tuple[str, ...] = ()
    devices: int = 0
    shim: bool = False
    within: float = 0.0
    why: str = ""


SCRIPTS = {
    "accelerate_ddp": Script(2),
    "amp_gradscaler": Script(2, shim=True),
    "comm_hooks": Script(2),
    "data_parallel": Script(
        1,
        launched=False,
        devices=4,
        within=1e-12,
        why="the gradients of four replicas are added, those of one process are one product",
    ),
    "dcp": Script(2),
    "ddp_spawn": Script(4, launched=False, args=("4",), devices=4),
    "elastic": Script(2, args=("3", "1"), shim=True),
    "ema_clipping": Script(2),
    "fsdp2_llama": Script(4),
    "hf_trainer": Script(2),
    "hsdp": Script(4),
    "imagenet_style": Script(
        2,
        launched=False,
        args=(
            *("--dist-url", "tcp://127.0.0.1:PORT", "--seed", "1"),
            *("--multiprocessing-distributed", "--world-size", "1", "--rank", "0"),
        ),
        devices=2,
        shim=True,
    ),
    "join_uneven": Script(3),
    "loader_workers": Script(2),
    "local_sgd": Script(4),
    "mingpt": Script(2),
    "model_parallel": Script(2, devices=4, shim=True),
    "no_sync": Script(4),
    "pipeline": Script(4),
    "recomputation": Script(2),
    "resume": Script(4),
    "sampler": Script(3),
    "subgroups": Script(4),
    "sync_batchnorm": Script(
        2,
        shim=True,
        within=1e-12,
        why="torch's SyncBatchNorm has no kernel for CPUs; the shim's adds sums in another order",
    ),
    "unused_parameters": Script(2),
    "zero_tutorial": Script(2, launched=False, args=("2",), devices=2),
}
