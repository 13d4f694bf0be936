"""Real processes with gloo, forked from one that has torch, since loading it takes seconds."""

import multiprocessing
import os
import runpy
import sys
import time
import traceback

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo"])


def run(path, world_size, arguments, folder):
    """Run a script on as many processes, and raise what they raise."""
    port = str(20000 + os.getpid() % 20000)
    errors = folder / "errors"
    processes = [
        CONTEXT.Process(target=live, args=(path, rank, world_size, port, arguments, errors))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    for _ in range(1200):
        if all(p.exitcode == 0 for p in processes) or any(p.exitcode for p in processes):
            break
        processes[0].join(0.1)
        time.sleep(0.01)
    for process in processes:
        if process.exitcode is None:
            process.terminate()
            process.join()
    told = errors.read_text() if errors.exists() else ""
    assert [process.exitcode for process in processes] == [0] * world_size, told


def live(path, rank, world_size, port, arguments, errors):
    import torch

    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    torch.set_num_threads(1)
    sys.argv = [str(path), *map(str, arguments)]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except BaseException:
        with errors.open("a") as stream:
            stream.write(f"rank {rank}:\n{traceback.format_exc()}")
        raise
