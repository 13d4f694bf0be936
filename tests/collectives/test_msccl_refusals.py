"""MSCCL files that are wrong: one line with the file, the line and the reason."""

import pytest
from for_each import for_each
from msccl_examples import (
    EXAMPLES,
    algorithm,
    all_pairs,
    block,
    chain_broadcast,
    ring_all_gather,
    ring_all_reduce,
    step,
)

from simdp.collectives import FAMILIES, Collectives
from simdp.errors import ScenarioError

GOOD = ring_all_reduce(3)
HEAD = GOOD.splitlines()[0]


def refused(tmp_path, text, collective="all_reduce"):
    """What is said about a file; without the file's name."""
    file = tmp_path / "x.xml"
    file.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        FAMILIES[collective]["msccl"](path="x.xml").settled(tmp_path)
    (line,) = caught.value.problems
    assert line.startswith(f"{file}:")
    return line.removeprefix(f"{file}:")


@for_each(
    ("old", "new", "said"),
    [
        # Not XML, or not ours
        ("</algo>", "", "30: is not valid XML: no element found."),
        ("<algo", "<algo <", "1: is not valid XML: not well-formed (invalid token)."),
        (
            HEAD,
            '<!DOCTYPE a [<!ENTITY b "c">]>' + HEAD,
            "1: declares a document type; leave <!DOCTYPE out.",
        ),
        ("algo", "topo", "1: <topo> is not an MSCCL algorithm, which begins with <algo>."),
        (
            'coll="allreduce"',
            'coll="allredoos"',
            "1: unknown coll 'allredoos'. Did you mean 'allreduce'? Known: allgather, "
            "allreduce, alltoall, broadcast, gather, reduce, reducescatter, scatter.",
        ),
        (
            'coll="allreduce"',
            'coll="allgather"',
            "1: is for all_gather, not for all_reduce.",
        ),
        # Attributes
        (' coll="allreduce"', "", "1: <algo> has no attribute 'coll'; add it."),
        (' ngpus="3"', "", "1: <algo> has no attribute 'ngpus'; add it."),
        (' nchunksperloop="3"', "", "1: <algo> has no attribute 'nchunksperloop'; add it."),
        (' inplace="1"', "", "1: <algo> has no attribute 'inplace'; add it."),
        ('ngpus="3"', 'ngpus="three"', "1: <algo> ngpus 'three' is not a whole number."),
        ('ngpus="3"', 'ngpus="0"', "1: <algo> ngpus 0 is out of range; it must be 1 ... 65536."),
        ('ngpus="3"', 'ngpus="4"', "1: has no <gpu> 3, but ngpus 4."),
        ('ngpus="3"', 'ngpus="2"', "20: <gpu> id 2 is out of range; it must be 0 ... 1."),
        ('<gpu id="1"', '<gpu id="0"', "11: <gpu> 0 is already in line 2."),
        (' i_chunks="3"', "", "2: <gpu> has no attribute 'i_chunks'; add it."),
        (
            'i_chunks="3"',
            'i_chunks="9"',
            "2: <gpu> i_chunks 9 is out of range; it must be 0 ... 3.",
        ),
        (' chan="0"', "", "3: <tb> has no attribute 'chan'; add it."),
        ('send="1"', 'send="3"', "3: <tb> send 3 is out of range; it must be -1 ... 2."),
        ('send="1"', 'send="0"', "3: <tb> send 0 is the rank itself."),
        ('send="1"', 'send="-1"', "4: step type 's' needs a peer, but its <tb> has send -1."),
        ('recv="2"', 'recv="-1"', "5: step type 'rrs' needs a peer, but its <tb> has recv -1."),
        (
            'type="rrs"',
            'type="rrx"',
            "5: unknown step type 'rrx'. Did you mean 'rrs'? Known: s, rcs, rrs, rrcs, r, rrc, "
            "cpy, re, nop.",
        ),
        ('s="1" type', 's="2" type', "5: <step> s is 2, but this is step 1."),
        (' srcbuf="i"', "", "4: <step> has no attribute 'srcbuf'; add it."),
        ('srcbuf="i"', 'srcbuf="j"', "4: unknown srcbuf 'j'; known: i, o, s."),
        (
            'srcoff="0"',
            'srcoff="3"',
            "4: chunk 3 of buffer 'i' is out of range; the <gpu> has i_chunks 3.",
        ),
        (
            'srcoff="0"',
            'srcoff="-1"',
            "4: <step> srcoff -1 is out of range; it must be 0 ... 65536.",
        ),
        ('cnt="1"', 'cnt="0"', "4: <step> cnt 0 is out of range; it must be 1 ... 65536."),
        ('cnt="1"', 'cnt="2"', "14: rank 1 receives cnt 1 where rank 0 sends cnt 2 (line 4)."),
        (
            'depid="-1" deps="-1"',
            'depid="7" deps="0"',
            "4: waits for step 0 of <tb> 7, which is not there.",
        ),
        (
            'depid="-1" deps="-1"',
            'depid="0" deps="9"',
            "4: waits for step 9 of <tb> 0, which is not there.",
        ),
        (
            'depid="-1" deps="-1"',
            'depid="0" deps="1"',
            "4: waits for step 1 of <tb> 0 (line 5), which has hasdep 0.",
        ),
        # What the proof finds
        (
            'type="rrs"',
            'type="rcs"',
            " all_reduce: rank 0 ends with an incomplete chunk 2: "
            "1 of 3 contributions are missing.",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_line_and_reason(tmp_path, old, new, said):
    text = GOOD.replace(old, new) if old == "algo" else GOOD.replace(old, new, 1)
    assert text != GOOD
    assert refused(tmp_path, text) == said


@for_each(
    ("collective", "text", "said"),
    [
        (
            "all_reduce",
            GOOD.replace("  <gpu", "  <cpu", 1).replace("  </gpu", "  </cpu", 1),
            "2: <cpu> is in <algo>, which may only hold <gpu>.",
        ),
        (
            "all_gather",
            ring_all_gather(4).replace('nchunksperloop="4"', 'nchunksperloop="6"'),
            "1: nchunksperloop 6 is not a multiple of ngpus 4, as all_gather needs.",
        ),
        (
            "all_gather",
            ring_all_gather(4).replace('i_chunks="1"', 'i_chunks="2"'),
            "2: <gpu> i_chunks 2 is out of range; it must be 0 ... 1.",
        ),
        (
            "all_reduce",
            all_pairs(3).replace('dstbuf="s" dstoff="1"', 'dstbuf="s" dstoff="2"'),
            "16: chunk 2 of buffer 's' is out of range; the <gpu> has s_chunks 2.",
        ),
        (
            "broadcast",
            chain_broadcast(2).replace(
                'type="r" srcbuf="i" srcoff="1"', 'type="nop" srcbuf="i" srcoff="1"'
            ),
            "5: rank 0 sends to rank 1 over channel 0, but rank 1 does not receive it.",
        ),
        (
            "broadcast",
            chain_broadcast(2).replace(
                'type="s" srcbuf="i" srcoff="1"', 'type="nop" srcbuf="i" srcoff="1"'
            ),
            "11: rank 1 receives from rank 0 over channel 0, but rank 0 does not send it.",
        ),
        (
            "broadcast",
            algorithm(
                "broadcast",
                [[block(step("s"), send=1), block(step("s", "i1"), send=1)], []],
                2,
            ),
            "6: <tb> 1 of <gpu> 0 shares the connection from rank 0 to rank 1 over channel 0 with "
            "<tb> 0; give it a channel of its own.",
        ),
        (
            "all_reduce",
            algorithm(
                "allreduce",
                [[block(step("rrcs"), send=1, recv=1)], [block(step("rrcs"), send=0, recv=0)]],
                1,
            ),
            "4: steps wait for each other in a circle: step 0 of <tb> 0 of <gpu> 0 (line 4), which "
            "waits for step 0 of <tb> 0 of <gpu> 1 (line 9), which waits for step 0 of <tb> 0 of "
            "<gpu> 0 (line 4).",
        ),
        (
            "all_reduce",
            algorithm(
                "allreduce",
                [
                    [block(step("s"), step("rrc"), send=1, recv=1)],
                    [block(step("rrc"), step("s"), send=0, recv=0)],
                ],
                1,
            ),
            " all_reduce: in round 1 rank 0 adds to chunk 0 a contribution that it holds already; "
            "it would be counted twice.",
        ),
        (
            "broadcast",
            algorithm(
                "broadcast",
                [[block(step("s", "s0"), send=1)], [block(step("r"), recv=0)]],
                1,
                sizes=(1, 1, 1),
            ),
            " broadcast: in round 0 rank 0 sends chunk 1 to rank 1 before it holds any of it.",
        ),
        (
            "all_reduce",
            algorithm(
                "allreduce",
                [
                    [block(step("s"), step("rrc", "i1", "i1"), send=1, recv=1)],
                    [block(step("s"), step("rrc"), send=0, recv=0)],
                ],
                2,
            ),
            " all_reduce: in round 0 rank 0 adds piece 0 of the buffer to chunk 1, "
            "which holds piece 1.",
        ),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, collective, text, said):
    assert refused(tmp_path, text, collective) == said


@pytest.mark.slow
@for_each("name", list(EXAMPLES))
def test_no_contribution_can_be_dropped(tmp_path, name):
    """Where a sum is replaced by one of its parts, the other part is missing."""
    collective, text = EXAMPLES[name]
    lines = text.splitlines()
    sums = [i for i, line in enumerate(lines) if 'type="rr' in line or 'type="re"' in line]
    for i in sums:
        kind = lines[i].split('type="')[1].split('"')[0]
        plain = {"rrc": "r", "rrs": "rcs", "rrcs": "rcs", "re": "cpy"}[kind]
        copied = [
            *lines[:i],
            lines[i].replace(f'type="{kind}"', f'type="{plain}"'),
            *lines[i + 1 :],
        ]
        said = refused(tmp_path, "\n".join(copied), collective)
        assert said.startswith(f" {collective}: ")
        assert "rank " in said
        assert "chunk " in said


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ScenarioError) as caught:
        FAMILIES["all_reduce"]["msccl"](path="none.xml").settled(tmp_path)
    assert caught.value.problems == [f"{tmp_path / 'none.xml'}: there is no such file."]


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "x.xml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError) as caught:
        FAMILIES["all_reduce"]["msccl"](path="x.xml").settled(tmp_path)
    assert caught.value.problems == [
        f"{tmp_path / 'x.xml'}: is not a text file; an algorithm is XML."
    ]


def test_collectives_name_every_key_whose_file_is_wrong(tmp_path):
    (tmp_path / "x.xml").write_text(GOOD)
    file = {"kind": "msccl", "path": "x.xml"}
    made = Collectives.model_validate({"all_reduce": file, "broadcast": file, "all_gather": file})
    with pytest.raises(ScenarioError) as caught:
        made.settled(tmp_path)
    wrong = f"{tmp_path / 'x.xml'}:1: is for all_reduce, not for"
    assert caught.value.problems == [
        f"collectives.all_gather: {wrong} all_gather.",
        f"collectives.broadcast: {wrong} broadcast.",
    ]
