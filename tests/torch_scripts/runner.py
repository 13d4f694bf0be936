"""Runs scripts in processes of their own: real ranks with gloo, or under ``simdp torchrun``.

Torch is imported once; each process is a fork of this one. Reads jobs from standard input as JSON,
one a line, and writes one line of JSON for each when it is done.
"""

import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).parent


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def in_child(work, folder):
    """Fork; the child does the work with its output in files, and is gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        for number, name in ((1, "out.txt"), (2, "log.txt")):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            os.dup2(os.open(str(Path(folder) / name), flags), number)
        work()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run_script(job):
    sys.argv = [job["script"], *job["args"]]
    sys.path.insert(0, str(Path(job["script"]).parent))
    runpy.run_path(job["script"], run_name="__main__")


def real_rank(job, rank, port):
    """One of torchrun's processes, or the only process of a script that starts its own."""
    os.chdir(job["folder"])
    os.environ.update(TUTORIAL_PORT=str(port))
    if rank is not None:
        world = str(job["ranks"])
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=world)
        os.environ.update(LOCAL_WORLD_SIZE=world, GROUP_RANK="0")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if job["shim"]:
        import cpu_shim

        cpu_shim.install(job["devices"])
    import torch.multiprocessing as mp

    def spawn(fn, args=(), nprocs=1, join=True, daemon=False, start_method="fork"):
        return mp.start_processes(fn, args, nprocs, join, daemon, start_method="fork")

    mp.spawn = spawn
    run_script(job)


def virtual_ranks(job):
    os.chdir(job["folder"])
    from simdp.__main__ import main

    sys.argv = ["simdp", "torchrun", *job["flags"], job["script"], *job["args"]]
    main()


def play(job):
    folder = job["folder"]
    begun = time.perf_counter()
    if job["kind"] == "simdp":
        children = [in_child(lambda: virtual_ranks(job), folder)]
    else:
        port = free_port()
        job["args"] = [arg.replace("PORT", str(port)) for arg in job["args"]]
        ranks = range(job["ranks"]) if job["launched"] else [None]
        children = [
            in_child(lambda rank=rank: real_rank(job, rank, port), folder) for rank in ranks
        ]
    statuses, waiting = {}, list(children)
    while waiting:
        for child in list(waiting):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                statuses[child] = os.waitstatus_to_exitcode(status)
                waiting.remove(child)
        if waiting and (any(statuses.values()) or time.perf_counter() - begun > job["limit"]):
            for child in waiting:  # what waits for a rank that is no more waits for ever
                os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return {"statuses": list(statuses.values()), "seconds": time.perf_counter() - begun}


def main():
    sys.path.insert(0, str(HERE))
    import torch._dynamo  # which optimizers import when they first step, for seconds
    import torch.distributed.fsdp
    import torch.distributed.optim  # noqa: F401

    import simdp.cli.torchrun
    import simdp.collectives.auto
    import simdp.reports.table
    import simdp.torch.launch  # noqa: F401
    from simdp.distributed.launch import find
    from simdp.torch.cuda.queries import extensions

    extensions()
    find(Path("dgx-a100"), 2, 2)  # compiles what checks a cluster
    for line in sys.stdin:
        job = json.loads(line)
        for name in job["imports"]:
            importlib.import_module(name)
        print(json.dumps(play(job)), flush=True)


if __name__ == "__main__":
    main()
