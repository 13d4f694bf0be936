"""Agreement: in the words of torch's analyser, and who is to blame."""

from for_each import for_each

from simdp.studies.diagnose.agreement import RankCall, compared, ranks_in_words, who_left_one_out

SENT = RankCall("all_reduce", (128,), (128,), ("float32",), "completed")


def others(number=3, **more):
    return dict.fromkeys(range(number), SENT._replace(**more))


@for_each(
    ("change", "state"),
    [
        ({}, "FULLY_MATCHED"),
        ({"name": "broadcast"}, "COLLECTIVE_TYPE_MISMATCH"),
        ({"sizes": (64,)}, "SIZE_OR_SYNTAX_MISMATCH"),
        ({"dtypes": ("bfloat16",)}, "COLLECTIVE_DTYPE_MISMATCH"),
        ({"state": "scheduled"}, "COLLECTIVE_STATE_MISMATCH"),
        ({"name": "broadcast", "sizes": (64,), "state": "started"}, "COLLECTIVE_TYPE_MISMATCH"),
    ],
)
def test_the_first_difference_gives_the_word_and_the_minority_is_the_culprit(change, state):
    found, detail, odd = compared({**others(), 3: SENT._replace(**change)})
    assert found == state
    assert odd == ((3,) if change else ())
    assert ("rank 3: " in detail) == bool(change)


def test_where_no_side_is_in_the_majority_nobody_is_blamed():
    assert compared({0: SENT, 1: SENT._replace(name="broadcast")})[2] == ()


def test_all_to_alls_may_be_uneven_as_long_as_all_that_is_sent_arrives():
    uneven = {
        0: RankCall("all_to_all", (10,), (4,), ("float32",)),
        1: RankCall("all_to_all", (2,), (8,), ("float32",)),
    }
    assert compared(uneven)[0] == "FULLY_MATCHED"
    assert compared(uneven, is_complete=False)[0] == "UNDECIDED"
    uneven[1] = uneven[1]._replace(out_sizes=(9,))
    assert compared(uneven)[:2] == (
        "SIZE_OR_SYNTAX_MISMATCH",
        "12 elements are sent, and 13 expected",
    )


def test_a_gather_needs_equal_inputs_only():
    gather = {
        0: RankCall("gather", (8,), (16,), ("float32",)),
        1: RankCall("gather", (8,), (), ("float32",)),
    }
    assert compared(gather)[0] == "FULLY_MATCHED"


def test_who_left_one_out_is_one_place_ahead_of_all_others():
    calls = [SENT._replace(sizes=(size,)) for size in (1, 2, 3, 4, 5, 6)]
    assert who_left_one_out({0: calls, 1: calls[1:]}) == (1,)
    assert who_left_one_out({0: calls, 1: calls, 2: calls[1:]}) == (2,)
    assert who_left_one_out({0: calls, 1: calls}) == ()
    assert who_left_one_out({0: calls, 1: []}) == ()


def test_many_ranks_are_counted():
    assert ranks_in_words([3]) == "rank 3"
    assert ranks_in_words(range(6)) == "ranks 0, 1, 2, 3 and 2 more"
