"""Why a collective timed out, from the watchdog's lines of several ranks.

A rank that waits in a collective prints it after its timeout; a rank that never called it prints
nothing. Thus the culprit is a rank that calls something else, or that is missing from the list. A
rank that failed explains both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simdp.arrays import grouped
from simdp.reports.figures import seconds
from simdp.results.diagnosis import Cause, Confidence, Finding, TextCause
from simdp.studies.diagnose.logs.sizes import KnownModels, in_words
from simdp.studies.diagnose.mismatches import UNEVEN, ranks_in_words
from simdp.traces.logs import BarLine, JobLog, RankEnd, WaitingCall

EARLY = 16  # collectives before the first step: set-up, and barriers around the preparation of data
SHARDING = ("all_gather", "reduce_scatter")  # collectives of sharded parameters

OF_PARAMETERS = (*SHARDING, "all_reduce", "reduce", "broadcast")
"""Collectives of gradients and parameters."""

FLIGHT = (
    "record which call it was: TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1, then "
    "diagnose the dumps"
)


def hang_findings(logs: Sequence[JobLog], models: KnownModels) -> Iterator[Finding]:
    """Find why ranks wait, and which ranks are to blame."""
    texts = [log.watchdog for log in logs if log.watchdog is not None]
    calls = _waiting(logs)
    ends = [end for text in texts for end in text.ends]
    yield from _ends(ends, _what(calls[0], models) if calls else "")
    yield from _unused([text.unused for text in texts if text.unused])
    for group in dict.fromkeys(call.group for call in calls):
        of_group = [call for call in calls if call.group == group]
        yield from _of_group(of_group, logs, models, ends)


def _waiting(logs: Sequence[JobLog]) -> list[WaitingCall]:
    """Calls in which ranks wait; a rank with progress only waits in its next collective."""
    calls = list(dict.fromkeys(call for log in logs if log.watchdog for call in log.watchdog.calls))
    rows = [row for log in logs if log.watchdog for row in log.watchdog.progress]
    known = {(call.rank, call.group) for call in calls}
    for row in dict.fromkeys(rows):
        number = row.group, row.completed + 1
        like = [call for call in calls if (call.group, call.sequence) == number]
        waits = row.enqueued > row.completed
        if waits and like and (row.rank, row.group) not in known:
            known.add((row.rank, row.group))
            calls.append(like[0]._replace(rank=row.rank))
    return calls


# Processes that end -------------------------------------------------------------------------------


def _ends(ends: Sequence[RankEnd], waited_for: str) -> Iterator[Finding]:
    """Findings for processes that ended, and left others waiting in a collective."""
    waits = f"; the other ranks wait for it in {waited_for}" if waited_for else ""
    killed = [end for end in ends if end.code == -9]
    if killed:
        yield Finding.in_text(
            "host_out_of_memory",
            f"{_who(killed)} ended by signal 9 (SIGKILL){waits}: the kernel does so when the "
            "host's memory, or the container's limit, is exhausted.",
            _ranks(killed),
            expected="every process of the node fits the host's memory, offloaded states included",
            obtained="; ".join(dict.fromkeys(end.text for end in killed)),
            remedy="watch free -h or dmesg for the OOM killer; offload fewer states to the host, "
            "load weights on one rank only, or use fewer workers of the data loader",
            confidence="likely",
        )
    bus = [end for end in ends if end.code == -7]
    if bus:
        yield Finding.in_text(
            "shared_memory_full",
            f"{_who(bus)}: {bus[0].text}{waits}: /dev/shm is too small for workers of the data "
            "loader and NCCL.",
            _ranks(bus),
            expected="a gigabyte of /dev/shm per GPU (docker gives 64 MB)",
            obtained=bus[0].text,
            remedy="docker run --shm-size=16g (or --ipc=host); in Kubernetes a memory-backed "
            "emptyDir at /dev/shm",
            confidence="certain",
        )
    failed = [end for end in ends if end.code not in (-9, -7) and end.code not in (-6, -15)]
    if failed and waited_for:
        yield Finding.in_text(
            "rank_failed",
            f"{_who(failed)} failed ({failed[0].text}){waits}.",
            _ranks(failed),
            expected="all ranks call the collective",
            obtained="; ".join(dict.fromkeys(end.text for end in failed[:3])),
            remedy="the failure that comes first in the log is the cause, not the timeout",
            confidence="likely",
        )


def _ranks(ends: Sequence[RankEnd]) -> tuple[int, ...]:
    return tuple(sorted({end.rank for end in ends if end.rank is not None}))


def _who(ends: Sequence[RankEnd]) -> str:
    ranks = _ranks(ends)
    return ranks_in_words(ranks) if ranks else "a process"


def _unused(listed: Sequence[str]) -> Iterator[Finding]:
    if not listed:
        return
    which = listed[0] if listed[0] == "some" else f"parameters {listed[0][:120].strip()}"
    yield Finding.in_text(
        "unused_parameters",
        f"DDP waits for gradients that backward never makes ({which} had none).",
        expected="every parameter takes part in the loss, on every rank",
        obtained=f"{which} without a gradient",
        remedy="DistributedDataParallel(find_unused_parameters=True), or use all outputs of "
        "forward in the loss; TORCH_DISTRIBUTED_DEBUG=DETAIL names the parameters",
        confidence="certain",
    )


# Collectives --------------------------------------------------------------------------------------


def _of_group(
    calls: Sequence[WaitingCall],
    logs: Sequence[JobLog],
    models: KnownModels,
    ends: Sequence[RankEnd],
) -> Iterator[Finding]:
    sequences = [call.sequence for call in calls if call.sequence is not None]
    first = [call for call in calls if not sequences or call.sequence == min(sequences)]
    what = _what(first[0], models)
    if difference := _difference(first):
        yield _disagreement(difference[0], difference[1], first[0], models)
        return
    later = sorted({s for s in sequences if s > min(sequences)})
    if later and {call.rank for call in first} != {call.rank for call in calls}:
        ahead = sorted({c.rank for c in calls if c.sequence in later and c.rank is not None})
        yield Finding.in_text(
            "desynchronised",
            f"{_calls_text(first)} in {what}, while {ranks_in_words(ahead)} wait{_s(ahead)} "
            f"in collective {', '.join(map(str, later[:3]))}: ranks no longer call the same "
            "collectives.",
            tuple(ahead),
            expected="all ranks wait in the same collective",
            obtained=f"{len({*sequences})} different ones",
            remedy=f"look for calls in a branch that not every rank takes; {FLIGHT}",
            confidence="likely",
        )
        return
    yield from _same_call(first, what, logs, bool(ends))


def _what(call: WaitingCall, models: KnownModels) -> str:
    """``all_reduce 96125 of 544,997,376 elements (152,064 x 3,584: embedding or head of ...)``."""
    number = "" if call.sequence is None else f" {call.sequence}"
    whole = max(call.num_in or 0, call.num_out or 0)
    size = f" of {whole:,} element{'s' * (whole > 1)}" if whole else ""
    words = ""
    if call.name in OF_PARAMETERS:
        words = in_words(models.of_elements(whole, _world_of(call)))
    return f"{call.name}{number}{size}" + (f" ({words})" if words else "")


def _world_of(call: WaitingCall) -> int | None:
    """Ranks of a group, by the sizes of a call whose output is a piece or the whole."""
    pair = sorted((call.num_in or 0, call.num_out or 0))
    if call.name in SHARDING and pair[0] and pair[1] % pair[0] == 0:
        return pair[1] // pair[0]
    return None


def _difference(calls: Sequence[WaitingCall]) -> tuple[list[int], str] | None:
    """Ranks that call another collective or size than most, and the difference in words."""
    for of in (_name_of, _size_of):
        seen = {call.rank: of(call) for call in calls if of(call) and call.rank is not None}
        if len(set(seen.values())) > 1:
            most, times = Counter(seen.values()).most_common(1)[0]
            odd = sorted(rank for rank, value in seen.items() if value != most)
            odd = odd if times * 2 > len(seen) else sorted(seen)
            by_value = grouped((value, rank) for rank, value in sorted(seen.items()))
            words = [f"{ranks_in_words(ranks)}: {value}" for value, ranks in by_value.items()]
            return odd, "; ".join(words)
    return None


def _name_of(call: WaitingCall) -> str:
    return call.name


def _size_of(call: WaitingCall) -> str:
    return "" if call.num_in is None or call.name in UNEVEN else f"{call.num_in:,} elements"


def _disagreement(odd: list[int], words: str, call: WaitingCall, models: KnownModels) -> Finding:
    number = "collective" if call.sequence is None else f"collective {call.sequence}"
    return Finding.in_text(
        "desynchronised",
        f"in {number} of a group, ranks call different things ({words}).",
        tuple(odd),
        expected="the same collective of the same size on all ranks",
        obtained=words,
        remedy="look for a branch, a reduce where an all_reduce is due, or data of another "
        f"length on {ranks_in_words(odd)}; {FLIGHT}",
        confidence="certain",
    )


def _calls_text(calls: Sequence[WaitingCall]) -> str:
    """``ranks 1, 2 wait``."""
    ranks = sorted({call.rank for call in calls if call.rank is not None})
    return f"{ranks_in_words(ranks)} wait{_s(ranks)}" if ranks else "ranks wait"


def _s(ranks: Sequence[int]) -> str:
    return "s" * (len(ranks) == 1)


class SharedWait(NamedTuple):
    """Ranks that wait in one collective."""

    call: WaitingCall
    here: tuple[int, ...]  # ranks that wait
    missing: tuple[int, ...]  # other ranks of the group, as far as known
    waits: str  # who waits in what, in words
    expected: str
    obtained: str

    @property
    def is_alone(self) -> bool:
        """Whether a single rank waits, so that the text may be that of one rank."""
        return len(self.here) == 1

    def finding(
        self, cause: TextCause | Cause, why: str, who: tuple[int, ...], how: str, sure: Confidence
    ) -> Finding:
        """A cause of the wait: its reason, its ranks, and its remedy."""
        return Finding.in_text(
            cause,
            f"{self.waits}{why}",
            who,
            expected=self.expected,
            obtained=self.obtained,
            remedy=how,
            confidence=sure,
        )


def _shared(calls: Sequence[WaitingCall], what: str, logs: Sequence[JobLog]) -> SharedWait:
    call = calls[0]
    here = tuple(sorted({waiting.rank for waiting in calls if waiting.rank is not None}))
    missing = tuple(sorted(set(range(_world(calls, logs))) - set(here))) if here else ()
    waited = f" for {seconds(call.waited_s)}" if call.waited_s else ""
    limit = f" within {seconds(call.timeout_s)}" if call.timeout_s else ""
    if len(here) == 1:
        only = f"only rank {here[0]} waits"
        obtained = f"{only}: the others are done, never called it, or left no line here"
    elif missing:
        obtained = f"{ranks_in_words(missing)} did not call it, or left no line"
    else:
        obtained = f"{len(here)} ranks wait, none is done" if here else "no line names a rank"
    waits = f"{_calls_text(calls)}{waited} in {what}"
    return SharedWait(call, here, missing, waits, f"all ranks call it{limit}", obtained)


def _same_call(
    calls: Sequence[WaitingCall], what: str, logs: Sequence[JobLog], failed: bool
) -> Iterator[Finding]:
    wait = _shared(calls, what, logs)
    if (bar := _preparing(logs)) is not None:
        yield _preparation(bar, wait)
    elif not failed:
        yield from _barrier(wait)
    yield from _hints(wait, logs)
    if failed:
        return
    who = wait.here if wait.is_alone else wait.missing
    yield wait.finding(
        "desynchronised",
        f"; {wait.obtained}.",
        who,
        "give all ranks equally many batches (drop_last, Join), and let no rank skip a call; "
        f"{FLIGHT}",
        "likely" if who and not wait.is_alone else "possible",
    )
    if not wait.missing and len(wait.here) > 1:
        yield wait.finding(
            "slow_link",
            "; if these are all ranks, then not the order of calls holds them up, but the network "
            "or a kernel.",
            (),
            "run nccl-tests on the same nodes with NCCL_DEBUG=INFO, and diagnose its output",
            "possible",
        )


def _barrier(wait: SharedWait) -> Iterator[Finding]:
    """Yield that a rank may still prepare data, while the others wait in a barrier."""
    number = wait.call.sequence
    if number is None or number > EARLY or wait.call.num_in not in (1, None) or not wait.missing:
        return
    yield wait.finding(
        "input_stall",
        f"; so early, and for one element, it is a barrier: {ranks_in_words(wait.missing)} may "
        "still prepare the data.",
        wait.missing,
        "prepare the data once, before the job, or raise the timeout (ddp_timeout, "
        "init_process_group(timeout=...))",
        "possible",
    )


def _hints(wait: SharedWait, logs: Sequence[JobLog]) -> Iterator[Finding]:
    """Causes that other lines suggest: experts without tokens, and checkpoints."""
    texts = [log.watchdog for log in logs if log.watchdog is not None]
    if any(text.experts for text in texts) and wait.call.name in SHARDING:
        yield wait.finding(
            "unused_parameters",
            "; the model is a mixture of experts whose parameters are sharded: an expert without "
            "tokens on a rank makes that rank skip the gathering of its parameters.",
            wait.missing,
            "deepspeed.utils.set_z3_leaf_modules(model, [the MoE block]), or feed every expert on "
            "every rank",
            "likely",
        )
    if any(text.saving for text in texts) and (wait.missing or wait.is_alone):
        who = ranks_in_words(wait.missing) if wait.missing else "another"
        yield wait.finding(
            "straggler",
            f", just after a checkpoint or an evaluation began: {who} may still be busy with it.",
            wait.missing,
            "save on all ranks (sharded) or asynchronously, or raise the timeout",
            "likely",
        )


def _world(calls: Sequence[WaitingCall], logs: Sequence[JobLog]) -> int:
    """Ranks of the group, as far as known: at least those up to the largest that waits."""
    known = [num_ranks for call in calls if (num_ranks := _world_of(call))]
    known += [size for log in logs if log.nccl is not None and (size := log.nccl.world_size())]
    largest = max((call.rank for call in calls if call.rank is not None), default=-1)
    ends = [end.rank for log in logs if log.watchdog for end in log.watchdog.ends]
    largest = max([largest, *(rank for rank in ends if rank is not None)])
    return max(known) if known and max(known) > largest else largest + 1


def _preparing(logs: Sequence[JobLog]) -> BarLine | None:
    """The last state of a bar of data preparation that is not done."""
    unfinished = None
    for log in logs:
        for bar in log.progress.bars if log.progress else ():
            words = ("tokeniz", "map", "dataset", "filter", "packing", "preprocess", "grouping")
            if bar.done < bar.total and any(word in bar.label.lower() for word in words):
                unfinished = bar
    return unfinished


def _preparation(bar: BarLine, wait: SharedWait) -> Finding:
    whole = bar.elapsed_s + (bar.left_s or 0.0)
    limit = wait.call.timeout_s or 0.0
    return wait._replace(
        expected=f"{_minutes(whole)} for all {bar.total:,}, at this rate",
        obtained=f"a timeout of {_minutes(limit)}" if limit else "a timeout",
    ).finding(
        "input_stall",
        f"; meanwhile data are prepared ({bar.label}: {bar.done:,} of {bar.total:,} {bar.unit} "
        f"after {_minutes(bar.elapsed_s)}).",
        wait.missing,
        "prepare the data once, before the job (or with more processes), or raise the timeout "
        f"above {_minutes(whole)} (ddp_timeout)",
        "likely" if whole > limit else "possible",
    )


def _minutes(value: float) -> str:
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
