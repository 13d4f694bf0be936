"""Works and futures: what they hold, when it is there, and callbacks."""

import numpy as np
from for_each import for_each

import simdp.distributed as dist


def test_a_future_has_the_tensors_of_its_call(run):
    def program(rank):
        tensor, many = np.full(2, float(rank)), [np.zeros(1) for _ in range(2)]
        stacked = np.zeros(2)
        works = [
            dist.all_reduce(tensor, async_op=True),
            dist.broadcast(tensor, 0, async_op=True),
            dist.all_gather(many, np.ones(1), async_op=True),
            dist.all_gather_into_tensor(stacked, np.ones(1), async_op=True),
            dist.barrier(async_op=True),
        ]
        found = [work.get_future().wait() for work in works]
        assert all(work.is_completed() and work.is_success() for work in works)
        one, other = found[0], found[1]
        assert one[0] is other[0] is tensor
        assert found[2] == many
        assert found[3][0] is stacked
        return len(found[0]), len(found[3]), found[4]

    assert run(program, 2).values == [(1, 1, [])] * 2


def test_a_message_has_a_future_too(run):
    def program(rank):
        tensor = np.full(1, 7.0 * rank)
        work = dist.irecv(tensor, 1) if rank == 0 else dist.isend(tensor, 0)
        return work.get_future().wait()[0][0]

    assert run(program, 2).values == [7.0, 7.0]


def test_callbacks_follow_each_other_and_run_once(run):
    def program(rank):
        seen = []

        def halved(future):
            seen.append(dist.clock())
            return future.value()[0] / 2

        work = dist.all_reduce(np.full(2, 1.0 + rank), async_op=True)
        first = work.get_future().then(halved)
        last = first.then(lambda future: future.value() + 1)
        assert work.is_success()
        assert not last.done()
        assert seen == []
        value = last.wait()
        assert last.value() is value
        assert first.value() is first.wait()
        at_once = first.then(lambda future: seen.append("now"))
        assert at_once.done()
        return value.tolist(), len(seen), seen[1]

    assert run(program, 2).values == [([2.5, 2.5], 2, "now")] * 2


def test_a_value_that_is_not_there_yet_is_refused(refused):
    def program(rank):
        dist.all_reduce(np.zeros(1), async_op=True).get_future().value()

    assert refused(program) == (
        "value: all_reduce(float64[1], op=SUM) is not over yet; call wait() first."
    )


@for_each("name", ["get_future", "is_success"])
def test_a_work_belongs_to_the_rank_that_made_it(refused, name):
    works = {}

    def program(rank):
        if rank == 0:
            works[0] = dist.barrier(async_op=True)
            works[0].wait()
        getattr(works[0], name)()

    assert refused(program) == (
        f"{name}: rank 1 waits for barrier() of rank 0; let each rank wait for its own calls."
    )
