"""Small MSCCL algorithms as XML texts, written the way msccl-tools writes them."""

from __future__ import annotations


def step(kind, src="i0", dst="i0", cnt=1, after=None, hasdep=0):
    """A step without its number; ``i3`` is chunk 3 of the input (``o``: output, ``s``: scratch)."""
    block, number = after or (-1, -1)
    return (
        f'type="{kind}" srcbuf="{src[0]}" srcoff="{src[1:]}" dstbuf="{dst[0]}" '
        f'dstoff="{dst[1:]}" cnt="{cnt}" depid="{block}" deps="{number}" hasdep="{hasdep}"'
    )


def block(*steps, send=-1, recv=-1, chan=0):
    """A thread block without its number."""
    return send, recv, chan, steps


def algorithm(coll, gpus, chunks, *, inplace=1, sizes=None):
    """The text of a file; ``gpus`` lists the thread blocks of each rank, one element to a line."""
    sizes = sizes or (chunks, chunks, 0)
    lines = [
        f'<algo name="{coll}" proto="Simple" nchannels="1" nchunksperloop="{chunks}" '
        f'ngpus="{len(gpus)}" coll="{coll}" inplace="{inplace}" outofplace="{1 - inplace}" '
        'minBytes="0" maxBytes="0">'
    ]
    for rank, blocks in enumerate(gpus):
        i, o, s = sizes
        lines.append(f'  <gpu id="{rank}" i_chunks="{i}" o_chunks="{o}" s_chunks="{s}">')
        for number, (send, recv, chan, steps) in enumerate(blocks):
            lines.append(f'    <tb id="{number}" send="{send}" recv="{recv}" chan="{chan}">')
            lines += [f'      <step s="{s}" {text}/>' for s, text in enumerate(steps)]
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def ring_all_reduce(n=4, channels=1):
    """Around the ring with fused steps: a sum is kept only where it is complete.

    Every channel does so with a thread block of its own, for its slice of each chunk.
    """
    gpus = [[_around(r, n, channels, c) for c in range(channels)] for r in range(n)]
    return algorithm("allreduce", gpus, n * channels)


def _around(r, n, channels, channel):
    at = [f"i{(r - hop) % n * channels + channel}" for hop in range(2 * n)]
    steps = [step("s", at[0], at[0])]
    steps += [step("rrs", at[hop], at[hop]) for hop in range(1, n - 1)]
    steps += [step("rrcs", at[n - 1], at[n - 1])]
    steps += [step("rcs", at[hop], at[hop]) for hop in range(n, 2 * n - 2)]
    steps += [step("r", at[2 * n - 2], at[2 * n - 2])]
    return block(*steps, send=(r + 1) % n, recv=(r - 1) % n, chan=channel)


def all_pairs(n=4):
    """Everyone sends chunk c to rank c, into scratch, which adds and sends the sum to everyone.

    As msccl-tools writes it: what waits for several others waits for all but one in a nop.
    """
    gpus = []
    for r in range(n):
        others = [p for p in range(n) if p != r]
        waits = [step("nop", "i-1", "o-1", 0, after=(k + 1, 1)) for k in range(1, n - 1)]
        adder = [step("re", f"s{k}", f"i{r}", hasdep=int(k == n - 2)) for k in range(n - 1)]
        adder[0] = step("re", "s0", f"i{r}", after=(1, 1), hasdep=int(n == 2))
        adder = waits + adder
        blocks = [block(*adder)]
        for k, p in enumerate(others):
            blocks.append(
                block(
                    step("s", f"i{p}", f"s{r - (r > p)}"),
                    step("r", f"i{r}", f"s{k}", hasdep=1),
                    step("s", f"i{r}", f"i{r}", after=(0, len(adder) - 1)),
                    step("r", f"i{p}", f"i{p}"),
                    send=p,
                    recv=p,
                )
            )
        gpus.append(blocks)
    return algorithm("allreduce", gpus, n, sizes=(n, 0, n - 1))


def hierarchical_all_reduce():
    """Two nodes of two: halves are added inside, then across, and passed on inside."""
    gpus = []
    for r in range(4):
        mate, rail, mine, theirs = r ^ 1, r ^ 2, f"i{r % 2}", f"i{1 - r % 2}"
        inside = block(
            step("s", theirs, theirs),
            step("rrc", mine, mine, hasdep=1),
            step("s", mine, mine, after=(1, 1)),
            step("r", theirs, theirs),
            send=mate,
            recv=mate,
        )
        across = block(
            step("s", mine, mine, after=(0, 1)),
            step("rrc", mine, mine, hasdep=1),
            send=rail,
            recv=rail,
        )
        gpus.append([inside, across])
    return algorithm("allreduce", gpus, 2)


def two_step_all_to_all(inplace=0):
    """Two nodes of two: first inside the node to the right rail, then along the rail."""
    gpus = []
    for r in range(4):
        mate, rail, node = r ^ 1, r ^ 2, r // 2
        far = 2 * (1 - node)  # first rank of the other node
        gpus.append(
            [
                block(
                    step("s", f"i{mate}", f"o{r}"),
                    step("s", f"i{far + mate % 2}", "s0"),
                    step("cpy", f"i{r}", f"o{r}"),
                    step("r", f"i{r}", f"o{mate}"),
                    step("r", f"i{far + r % 2}", "s0", hasdep=1),
                    send=mate,
                    recv=mate,
                ),
                block(
                    step("s", f"i{rail}", f"o{r}"),
                    step("s", "s0", f"o{mate}", after=(0, 4)),
                    step("r", f"i{r}", f"o{rail}"),
                    step("r", "s0", f"o{far + mate % 2}"),
                    send=rail,
                    recv=rail,
                ),
            ]
        )
    return algorithm("alltoall", gpus, 4, inplace=inplace, sizes=(4, 4, 1))


def ring_all_gather(n=4, inplace=0):
    """Each piece travels around; in place there is no copy of the own one."""
    gpus = []
    for r in range(n):
        own = step("cpy", "i0", f"o{r}") if not inplace else step("nop", "i-1", "o-1", 0)
        steps = [step("s", "i0", f"o{r}"), own]
        steps += [step("rcs", "i0", f"o{(r - hop) % n}") for hop in range(1, n - 1)]
        steps += [step("r", "i0", f"o{(r + 1) % n}")]
        gpus.append([block(*steps, send=(r + 1) % n, recv=(r - 1) % n)])
    return algorithm("allgather", gpus, n, inplace=inplace, sizes=(1, n, 0))


def ring_reduce_scatter(n=4, inplace=0):
    """Sums are only sent on; the last one is stored at the output."""
    gpus = []
    for r in range(n):
        at = [f"i{(r - 1 - hop) % n}" for hop in range(n)]
        steps = [step("s", at[0], at[0])]
        steps += [step("rrs", at[hop], at[hop]) for hop in range(1, n - 1)]
        steps += [step("rrc", at[n - 1], "o0")]
        gpus.append([block(*steps, send=(r + 1) % n, recv=(r - 1) % n)])
    return algorithm("reducescatter", gpus, n, inplace=inplace, sizes=(n, 1, 0))


def chain_broadcast(n=4, inplace=1, chunks=2):
    """From rank 0 along a chain."""
    gpus = []
    for r in range(n):
        to = "i" if inplace else "o"
        steps = []
        for c in range(chunks):
            kind = "s" if r == 0 else "rcs" if r < n - 1 else "r"
            steps.append(step(kind, f"i{c}", f"{to}{c}"))
            if r == 0 and not inplace:
                steps.append(step("cpy", f"i{c}", f"o{c}"))
        gpus.append([block(*steps, send=r + 1 if r < n - 1 else -1, recv=r - 1)])
    return algorithm("broadcast", gpus, chunks, inplace=inplace, sizes=(chunks, chunks, 0))


def chain_reduce(n=4):
    """Along a chain to rank 0; what is only passed on is stored nowhere."""
    gpus = []
    for r in range(n):
        kind = "s" if r == n - 1 else "rrs" if r else "rrc"
        steps = [step(kind, "i0", "i0", 2)]
        gpus.append([block(*steps, send=r - 1, recv=r + 1 if r < n - 1 else -1)])
    return algorithm("reduce", gpus, 2)


def star_gather(n=4):
    """Everyone sends rank 0 two chunks."""
    gpus = [[block(step("r", "i0", f"o{2 * p}", 2), recv=p) for p in range(1, n)]]
    gpus += [[block(step("s", "i0", f"o{2 * r}", 2), send=0)] for r in range(1, n)]
    return algorithm("gather", gpus, 2 * n, sizes=(2, 2 * n, 0))


def star_scatter(n=4):
    """Rank 0 sends everyone a chunk."""
    gpus = [[block(step("s", f"i{p}", "o0"), send=p) for p in range(1, n)]]
    gpus += [[block(step("r", f"i{r}", "o0"), recv=0)] for r in range(1, n)]
    return algorithm("scatter", gpus, n, sizes=(n, 1, 0))


EXAMPLES = {
    "ring all_reduce": ("all_reduce", ring_all_reduce()),
    "ring all_reduce of 2": ("all_reduce", ring_all_reduce(2)),
    "ring all_reduce of 7": ("all_reduce", ring_all_reduce(7)),
    "ring all_reduce on three channels": ("all_reduce", ring_all_reduce(4, channels=3)),
    "all pairs": ("all_reduce", all_pairs()),
    "all pairs of 2": ("all_reduce", all_pairs(2)),
    "hierarchical": ("all_reduce", hierarchical_all_reduce()),
    "two-step all_to_all": ("all_to_all", two_step_all_to_all()),
    "two-step all_to_all in place": ("all_to_all", two_step_all_to_all(inplace=1)),
    "ring all_gather": ("all_gather", ring_all_gather()),
    "ring all_gather in place": ("all_gather", ring_all_gather(inplace=1)),
    "ring reduce_scatter": ("reduce_scatter", ring_reduce_scatter()),
    "ring reduce_scatter in place": ("reduce_scatter", ring_reduce_scatter(inplace=1)),
    "chain broadcast": ("broadcast", chain_broadcast()),
    "chain broadcast out of place": ("broadcast", chain_broadcast(inplace=0)),
    "chain reduce": ("reduce", chain_reduce()),
    "star gather": ("gather", star_gather()),
    "star scatter": ("scatter", star_scatter()),
}
"""Each with its collective."""
