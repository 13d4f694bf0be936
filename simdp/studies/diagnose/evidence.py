"""Writes the evidence of each cause: sentences with figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from simdp.arrays import Bools, Floats
from simdp.reports.figures import nbytes, percent, seconds
from simdp.studies.diagnose.case import Case
from simdp.studies.diagnose.charges import Lateness
from simdp.studies.diagnose.critical import CriticalSteps
from simdp.studies.diagnose.expected import CollectiveSize
from simdp.studies.diagnose.exposed import Avoidable
from simdp.studies.diagnose.host import TINY, blocked, inside, kernel_uses, num_reads
from simdp.studies.diagnose.mismatches import ranks_in_words
from simdp.traces import ANNOTATION, OP, RUNTIME, SYNC
from simdp.traces.intervals import Instants
from simdp.traces.kernels import PRODUCTS, of_kind
from simdp.traces.timeline import OPTIMIZER, RankTimeline

ALMOST_NONE = 1e-3  # part of a difference below which the others have none of it
PART = 0.05  # parts of compute that are named take so much of it at least
MUCH = 0.1  # parts of late launches that are named take so much of them at least

PAUSE, QUIET = 5e-3, 0.2
"""Least length of a pause [s], and the most of it that the host spends in calls."""

IN_A_ROW = 5e-6  # longest mean time between kernels that are launched in time [s]

LONGEST = re.compile(r"[^(]*\((most of all .*)\) [^)]*$")
"""The kernel that takes longest, in a part of compute."""

GRAPH = re.compile(r"^[#\s]*Call CompiledFxGraph \w+[#\s]*$")
"""Annotation of a compiled graph; its name is a hash."""

UNEVEN = {
    "collectives": "in collectives",
    "wait": "in waiting",
    "sync": "in synchronisation",
    "launch": "until the host launches",
    "compile": "since torch.compile compiles anew",
    "other": "for no visible cause",
}
"""What steps take longer in, in words."""

NOT_PHASES = ("ProfilerStep", "nccl:", "gloo:", "enumerate(")
"""Annotations that are no phases of the host's work."""


class Evidence:
    """Sentences about a job.

    Parameters
    ----------
    case : Case
        The job's traces.
    critical : CriticalSteps
        Its steps.
    profiled : float
        Time of a step that the profiler takes from the host, at most [s].

    Attributes
    ----------
    profiled : float
        The same.
    """

    def __init__(self, case: Case, critical: CriticalSteps, profiled: float) -> None:
        self._case, self._critical, self.profiled = case, critical, profiled
        self._rank, self._window = critical.rank, critical.window
        self._step = "a step's" if case.has_steps else "the trace's"
        self._place = int(np.bincount(critical.rank).argmax())

    @property
    def _line(self) -> RankTimeline:
        """The rank that is critical in most steps."""
        return self._case.lines[self._place]

    def _of(self, value: float) -> str:
        """``4 ms of a step's 10 ms (40.0 %)``."""
        share = percent(value / self._window)
        return f"{seconds(value)} of {self._step} {seconds(self._window)} ({share})"

    def compute(self, value: float) -> str:
        """Time that the device computes, and which kernels do."""
        text = f"kernels that compute take {self._of(value)}"
        parts = [f"{name} {seconds(took)}" for name, took in self._uses() if took >= PART * value]
        if len(parts) == 1:  # of which only the longest kernel says more
            longest = LONGEST.match(parts[0])
            return f"{text}, {longest[1]}." if longest else f"{text}: {parts[0]}."
        return f"{text}: {', '.join(parts)}." if parts else f"{text}."

    def _uses(self) -> list[tuple[str, float]]:
        """Time of kernels by their use, and of the one that takes longest; mean of a step [s]."""
        trace, line = self._line.trace, self._line
        kernels = trace.kernels
        works = np.flatnonzero(kernel_uses(trace).works & (line.marks.kernel >= 0))
        if trace.on_host or not len(works) or np.isnan(kernels.launched).all():
            return []
        lasted = (kernels.end - kernels.start)[works] / line.num_steps
        products = of_kind(kernels, *PRODUCTS)[works]
        updates = of_kind(kernels, "optimizer")[works]
        updates |= self._in_update(kernels.launched[works])
        uses = [
            ("matrix products and convolutions", float(lasted[products & ~updates].sum())),
            ("the optimizer's update", float(lasted[updates].sum())),
        ]
        others = ~products & ~updates
        if others.any():
            named = np.bincount(kernels.name[works[others]], lasted[others])
            largest = short_name(kernels.names[int(named.argmax())])
            rest = float(lasted[others].sum())
            text = f"other kernels (most of all {largest} {seconds(float(named.max()))})"
            uses.append((text, rest))
        return sorted(uses, key=lambda item: -item[1])

    def _in_update(self, launched: Floats) -> Bools:
        """Which kernels were launched in the optimizer's step."""
        host = self._line.trace.host
        at = host.named(OPTIMIZER)
        return inside(Instants.of(host.start[at], host.end[at]), launched)

    def copies(self, value: float) -> str:
        """Time of copies within a device, casts, and changes of a layout."""
        trace, line = self._line.trace, self._line
        kernels = trace.kernels
        at = np.flatnonzero(kernel_uses(trace).copies & (line.marks.kernel >= 0))
        text = f"copies, casts and changes of layout take {self._of(value)}"
        if not len(at):
            return f"{text}."
        lasted = (kernels.end - kernels.start)[at] / line.num_steps
        named = np.bincount(kernels.name[at], lasted)
        text += f" in {len(at) / line.num_steps:,.0f} kernels"
        most = kernels.names[int(named.argmax())]
        text += f", most of all {short_name(most)} {seconds(float(named.max()))}"
        names = [kernels.names[code] for code in np.unique(kernels.name[at]).tolist()]
        if any("ToNhwc" in name or "ToNchw" in name for name in names):
            text += "; memory_format=torch.channels_last needs no changes of layout"
        elif any("copy_kernel" in name for name in names):
            text += "; parameters kept in the type of compute need no casts in every step"
        return f"{text}."

    def launch(self, value: float, compiled: float) -> str:
        """Time that the device waits for the host."""
        case, place, line = self._case, self._place, self._line
        steps, kernels = max(line.num_steps, 1), line.trace.kernels
        number = self._num_kernels
        if line.trace.on_host:
            tiny = int((kernel_uses(line.trace).tiny & (line.marks.kernel >= 0)).sum()) / steps
            return (
                f"operators that take less than {TINY * 1e6:.0f} us ({tiny:,.0f} of a step's "
                f"{number:,.0f}) and the host's work between operators take {self._of(value)}: "
                "calls cost more than what they compute; torch.compile makes one of many."
            )
        if np.isnan(kernels.launched).all():
            return f"no operator runs for {self._of(value)}."
        text = f"the device has nothing to do for {self._of(value)} since its host is late"
        starved = min(case.charged[place].starved / number, 1.0) if number else 0.0
        ran = (line.marks.kernel >= 0) & (kernels.kind != SYNC)
        lasted = float((kernels.end - kernels.start)[ran].mean()) if ran.any() else 0.0
        text += f": of {number:,.0f} kernels ({seconds(lasted)} on average) {percent(starved)} find"
        text += " it idle when launched"
        phases = ", ".join(f"{name} {seconds(took)}" for name, took in self._phases())
        text += f" (host: {phases})" if phases else ""
        if compiled >= MUCH * value:
            text += f"; torch.compile is at work for {seconds(compiled)} of it"
        profiled = min(self.profiled, value)
        if profiled >= MUCH * value:
            without = seconds(self._window - profiled)
            text += (
                f"; the profiler causes about {seconds(profiled)} of it, so that a step without it "
                f"takes about {without}"
            )
        return f"{text}."

    def _phases(self) -> list[tuple[str, float]]:
        """The annotations that take the host longest, per step [s]."""
        line = self._line
        host, phases = line.trace.host, list[tuple[str, float]]()
        for code in np.unique(host.name[host.kind == ANNOTATION]).tolist():
            name = host.names[code]
            if name.startswith(NOT_PHASES):
                continue
            at = (host.kind == ANNOTATION) & (host.name == code)
            lasted = Instants.of(host.start[at], host.end[at]).length() / line.num_steps
            phases.append((GRAPH.sub("compiled graph", name), lasted))
        return sorted(phases, key=lambda item: -item[1])[:2]

    def synchronisation(self, value: float) -> str:
        """Time that the device waits since the host had waited for it."""
        line, host = self._line, self._line.trace.host
        steps = max(line.num_steps, 1)
        if line.trace.on_host:
            return (
                f"the host reads {num_reads(line):,.0f} values of tensors in a step (.item()), "
                f"which takes {self._of(value)} here; on a GPU each waits for all kernels before "
                "it: read them once in many steps, or keep them in tensors."
            )
        counted = host.step >= 0 if len(line.trace.steps) else np.ones(len(host), dtype=bool)
        calls = Counter(host.names[i] for i in host.name[blocked(host) & counted].tolist())
        reads = Counter(
            host.names[i]
            for i in host.name[(host.kind == OP) & host.named("aten::item") & counted].tolist()
        )
        often = [f"{count / steps:,.3g} x {name}" for name, count in (calls + reads).most_common(3)]
        words = f" ({', '.join(often)} in a step)" if often else ""
        return (
            f"the device has nothing to do for {self._of(value)} since its host waited for it in "
            f"copies and synchronisation{words} and launched nothing meanwhile: read values once "
            "in many steps, copy with non_blocking=True from pinned memory."
        )

    def uneven(self) -> tuple[tuple[int, ...], str]:
        """Ranks and words for steps that take longer than the others."""
        case, critical = self._case, self._critical
        sentences, ranks = list[str](), set[int]()
        for part in critical.uneven[:2]:
            numbers = [int(case.numbers[place]) for place in part.places.tolist()]
            listed = ", ".join(map(str, numbers[:4])) + (" ..." if len(numbers) > 4 else "")
            which = f"step{'s' * (len(numbers) > 1)} {listed}"
            most = int(part.more.argmax())
            text = f"{which} (of {len(case.numbers)} traced) take{'s' * (len(numbers) == 1)} up to "
            text += f"{seconds(float(part.more.max()))} longer than the others {UNEVEN[part.what]}"
            if part.usual > 0:
                text += f" ({1 + float(part.more.max()) / part.usual:.3g} times as long)"
            place = int(critical.rank[most])
            if part.what == "wait":
                place = int(case.blamed[most, place, :-1].argmax())
                ranks.add(case.lines[place].rank)
                text += f", for {ranks_in_words([case.lines[place].rank])}"
            if part.what in ("wait", "launch"):
                text += self._pause(most, place)
            sentences.append(text)
        return tuple(sorted(ranks)), f"{'; '.join(sentences)}."

    def _pause(self, step: int, place: int) -> str:
        """What the host was at in the longest gap of a step."""
        case, line = self._case, self._case.lines[place]
        gaps, offset = case.charged[place].launch, float(case.found.offset[place])
        at = int(case.at[step, place])
        begin, until = line.begin[at] - offset, line.end[at] - offset
        held = (gaps.start < until) & (gaps.end > begin)
        if not held.any():
            return ""
        longest = int(np.argmax(np.where(held, gaps.end - gaps.start, 0.0)))
        start, end = float(gaps.start[longest]), float(gaps.end[longest])
        if end - start < PAUSE:
            return ""
        host = line.trace.host
        busy = (host.kind == OP) | (host.kind == RUNTIME)
        during = Instants.of(host.start[busy] - offset, host.end[busy] - offset)
        gap = Instants(np.array([start]), np.array([end]))
        if during.both(gap).length() < QUIET * (end - start):
            return (
                f": the host pauses for {seconds(end - start)} without a call (garbage collection, "
                "a checkpoint or a log, or another process)"
            )
        return f": the longest gap is {seconds(end - start)}"

    def unused(self, search: float, sent: float, avoided: Avoidable) -> str:
        """Time for parameters without a gradient."""
        text = f"find_unused_parameters costs {self._of(search + sent)}"
        if avoided.sent and avoided.accumulated is not None:
            dead = max(1 - avoided.accumulated / avoided.sent, 0.0)
            if dead >= PART:
                text += (
                    f": of {avoided.sent:,.0f} gradients that a step sends, {percent(dead)} are of "
                    "parameters that its forward does not use, and zeros"
                )
        text += f"; the search takes {seconds(search)}" if search > 0 else ""
        repair = "leave unused layers out of the module, and set find_unused_parameters=False"
        return f"{text}: {repair}."

    def small(self, value: float, avoided: Avoidable) -> str:
        """Time of many collectives that are too small."""
        advice = (
            "wrap the module in DDP, or send one flat buffer"
            if avoided.small_name == "all_reduce"
            else "shard larger units, or send one flat buffer"
        )
        mean = seconds(value / max(avoided.num_small, 1))
        return (
            f"{avoided.num_small:,.0f} {avoided.small_name} of {nbytes(avoided.small_nbytes)} on "
            f"average in a step take {self._of(value)}, {mean} each: {advice}."
        )

    def uneven_work(
        self, late: Lateness, stuck: float, lost: float, uneven: tuple[float, float]
    ) -> str:
        """Ranks that are late since they have more work."""
        mine, usual = uneven
        numbers = self._numbers(late.stragglers)
        has = "has" if len(numbers) == 1 else "have"
        return (
            f"ranks wait {self._of(lost)} for others, {seconds(stuck)} of it for "
            f"{ranks_in_words(numbers)}, which {has} {mine / usual:.3g} times as much work: "
            f"{mine:,.0f} elements go into its layers in a step, {usual:,.0f} into those of the "
            "others; give all ranks as many samples, or tokens."
        )

    def unexplained(self, value: float, idle: float, lacks_events: bool) -> str:
        """Time that no cause explains."""
        if lacks_events:
            return f"{self._of(value)} are not explained, since the trace is a sample."
        text = f"no cause explains {self._of(value)}"
        if idle >= value / 2:
            text += (
                f": for {seconds(idle)} the device is idle though its next kernel was launched, "
                "and waits for another stream, or for what is not in the traces"
            )
            gap = idle / max(self._num_kernels, 1.0)
            if gap <= IN_A_ROW:
                text += f" ({seconds(gap)} for each of its kernels, as they follow each other)"
        return f"{text}."

    def exposed(self, value: float) -> str:
        """Transfers that nothing hides, without the excess of slow ones."""
        case = self._case
        hidden = float(
            np.mean([rank.transferred.mean() - rank.of["transfer"].mean() for rank in case.charged])
        )
        text = f"transfers in the open take {self._of(value)}, {seconds(hidden)} more are hidden"
        largest = self._slowest(None)
        if largest is not None:
            size, lasted, _ = largest
            text += f"; {_named(size)} takes {seconds(lasted)}"
            if size in case.expected and case.reference.is_given:
                text += f", where {seconds(case.expected[size].usual)} is to be expected"
        return f"{text}."

    def slow(self, value: float) -> tuple[tuple[int, ...], str]:
        """Transfers that take longer than expected, and their ranks."""
        slowest = self._slowest(self._case.excess)
        if slowest is None or value <= 0:
            return (), ""
        size, lasted, expected = slowest
        world = self._case.reference.world_size
        ranks = size.ranks if len(size.ranks) < world else ()
        ratio = f"{lasted / expected:.1f} times what it should" if expected else ""
        times = ratio or "longer than others"
        against = f" ({seconds(expected)})" if expected else ""
        text = (
            f"transfers that are too slow cost {self._of(value)}: {_named(size)} takes "
            f"{seconds(lasted)}, {times}{against}"
        )
        return ranks, f"{text}{_between(ranks)}."

    def _slowest(self, excess: Floats | None) -> tuple[CollectiveSize, float, float | None] | None:
        """The collective that takes most of a step, or the most beyond the expected time."""
        case, lasted = self._case, dict[CollectiveSize, list[float]]()
        for calls, sizes in zip(case.calls, case.sizes, strict=True):
            for place, size in sizes.items():
                lasted.setdefault(size, []).append(calls[place].end - calls[place].middle)
        if not lasted:
            return None
        means = {size: float(np.mean(times)) for size, times in lasted.items()}
        expected = case.expected_times(means)
        if excess is None:
            size = max(means, key=lambda size: means[size] * len(lasted[size]))
        else:
            size = max(means, key=lambda size: means[size] - expected.get(size, means[size]))
        return size, means[size], expected.get(size)

    def input(self, own: float, fetched: Floats) -> str:
        """Time that the device waits for data."""
        own_words = f"the device waits for data for {self._of(own)}"
        late = float(fetched.sum())
        if not late:
            return f"{own_words}."
        place = int(fetched.argmax())
        rank, more = self._case.lines[place].rank, seconds(self._more("input", place))
        others = (
            f"ranks wait {self._of(late)} for others whose data are late: the loader and the "
            f"copies of rank {rank} take {more} longer than those of the others"
        )
        return f"{others}; {own_words}." if late > own else f"{own_words}; {others}."

    def _more(self, kind: str, place: int) -> float:
        """Time of a cause on a rank, beyond the median of the others; mean of a step [s]."""
        return float(self._case.charge(kind).mean(axis=0)[place]) - self._usual(kind, place)

    def _usual(self, kind: str, place: int) -> float:
        """Median time of a cause on the other ranks; mean of a step [s]."""
        return float(np.median(np.delete(self._case.charge(kind).mean(axis=0), place)))

    def straggler(self, late: Lateness, value: float) -> str:
        """Ranks that are late step after step, by how much, and why."""
        if not late.stragglers:
            return ""
        case, num_steps = self._case, len(late.cost)
        by = late.late[:, list(late.stragglers)]
        often = int((by.max(axis=1) >= late.cost / 2).sum())
        rank = late.stragglers[int(by.mean(axis=0).argmax())]
        numbers = self._numbers(late.stragglers)
        text = (
            f"{ranks_in_words(numbers)}{self._nodes(numbers)} come{'s' * (len(numbers) == 1)} last "
            f"to collectives in {often} of {num_steps} steps, and the rank that waits longest "
            f"waits {self._of(value)}"
        )
        text += self._before(rank, case) or self._why(rank)
        if num_steps == 1:
            text += "; one step alone does not tell a straggler from imbalance"
        return f"{text}."

    def _nodes(self, ranks: Sequence[int]) -> str:
        """Name the nodes, if these are all their ranks."""
        local_size = self._case.reference.local_size
        if local_size is None or local_size < 2:
            return ""
        nodes = sorted({rank // local_size for rank in ranks})
        if len(ranks) != local_size * len(nodes):
            return ""
        return f" (all of node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))})"

    @property
    def _num_kernels(self) -> float:
        kernels, step = self._line.trace.kernels, self._line.marks.kernel
        return float(((step >= 0) & (kernels.kind != SYNC)).sum()) / max(self._line.num_steps, 1)

    @property
    def _kernels(self) -> str:
        """Name of kernels: without a device, the host's operators stand for them."""
        trace = self._case.lines[0].trace
        is_host = trace.on_host or np.isnan(trace.kernels.launched).all()
        return "operators" if is_host else "kernels"

    def _why(self, place: int) -> str:
        """Cause that takes longest on the late rank, relative to the others."""
        words = {
            "compute": f"its {self._kernels} take{{}} as long as those of the others",
            "launch": "its host leaves it idle{} as long as the others",
            "input": "it waits for data{} as long as the others",
            "sync": "its host waits for it{} as long as the others",
            "copies": "its copies take{} as long as those of the others",
            "compile": "its host compiles{} as long as the others",
            "other": "its device rests{} as long as the others",
        }
        if len(self._case.lines) < 2:
            return ""
        more = {kind: self._more(kind, place) for kind in words}
        kind = max(more, key=lambda kind: more[kind])
        mean = float(self._case.blamed[:, :, place].sum(axis=1).mean())
        if more[kind] <= 0 or more[kind] < 0.02 * mean:
            return ""
        usual = self._usual(kind, place)
        if usual <= ALMOST_NONE * more[kind]:
            return f"; {words[kind].format('').replace(' as long as', ', unlike')}"
        return f"; {words[kind].format(f' {1 + more[kind] / usual:.3g} times')}"

    def _before(self, place: int, case: Case) -> str:
        """Lateness of a rank from before the traces."""
        lines, offsets = case.lines, case.found.offset
        begins = np.array(
            [line.begin[0] - offset for line, offset in zip(lines, offsets, strict=True)]
        )
        behind = float(begins[place] - begins.min())
        waited = float(case.blamed[0, :, place].max())
        if len(case.numbers) > 1 or behind < waited / 2 or waited <= 0:
            return ""
        first = case.lines[int(begins.argmin())].rank
        return (
            f"; its step begins {seconds(behind)} after that of rank {first}, so that it lost this "
            "time before the trace began, and not in this step"
        )

    def imbalance(self, late: Lateness, value: float) -> str:
        """Ranks that are late by turns."""
        if not late.others:
            return ""
        last = late.late.argmax(axis=1)
        counts = {place: int((last == place).sum()) for place in late.others}
        ranks = ranks_in_words(self._numbers(late.others))
        text = f"ranks wait {self._of(value)} for others that are late by turns: {ranks}"
        if len(last) > 1:
            most = max(counts.values(), default=0)
            text += f", none of them last in more than {most} of {len(last)} steps"
        if late.doubtful:
            ranks = ranks_in_words(self._numbers(late.doubtful))
            text += f"; {ranks} may be slow, but {len(last)} steps are too few to tell"
        return f"{text}."

    def unknown(self, value: float, steady: bool) -> str:
        """Waiting for ranks without a trace, in all steps or in some."""
        if len(self._case.lines) >= self._case.reference.world_size > 1:
            return (
                f"collectives last {self._of(value)} longer than the shortest of their size: "
                "traces lack events of other ranks at them, which are late, or links slow at times."
            )
        if steady:
            return (
                f"collectives last {self._of(value)} longer than links explain, whatever their "
                "size, in all steps alike: a rank whose trace is not here is late; its own trace "
                "would tell which."
            )
        return (
            f"collectives last {self._of(value)} longer than the shortest of their size: ranks "
            "whose traces are not here are late, or links slow at times; these traces alone can "
            "only suggest it."
        )

    def _numbers(self, places: Sequence[int]) -> list[int]:
        return sorted(self._case.lines[place].rank for place in places)


def short_name(kernel: str) -> str:
    """Shorten the name of a kernel: without namespaces, templates and arguments."""
    kernel = kernel.replace("(anonymous namespace)::", "")
    name = re.sub(r"^(void|static) ", "", kernel).split("<")[0].split("(")[0].strip()
    name = name.replace("at::native::", "").split("::")[-1] or kernel[:40]
    if re.fullmatch(r"(vectorized_|unrolled_)?elementwise_kernel|multi_tensor_apply_kernel", name):
        words = re.findall(r"\w++", kernel)
        functors = [word for word in words if "unctor" in word or "_kernel_cuda" in word]
        name += f" ({functors[0]})" if functors else ""
    return name if len(name) <= 60 else f"{name[:57]}..."


def _named(size: CollectiveSize) -> str:
    return f"{size.name} of {nbytes(size.nbytes)} among {len(size.ranks)} ranks"


def _between(ranks: tuple[int, ...]) -> str:
    return f", between {ranks_in_words(ranks)}" if ranks else ""
