"""Ids are made of random bytes that were fetched for many at once."""

import os
import threading

from antiphon.runtime.core.ids import new_id, new_response_id


def test_no_two_ids_are_alike_whichever_threads_make_them() -> None:
    ids: list[str] = []

    def make() -> None:
        ids.extend([new_id("req") for _ in range(5000)])

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 8 * 5000
    assert all(id.startswith("req_") and len(id) == len("req_") + 48 for id in ids)


def test_a_process_and_its_fork_make_no_id_alike() -> None:
    new_id("req")  # so that more are at hand
    end, childs_end = os.pipe()
    if (child := os.fork()) == 0:
        os.write(childs_end, "\n".join(_ids()).encode())
        os._exit(0)
    os.close(childs_end)
    with os.fdopen(end) as pipe:
        theirs = pipe.read().splitlines()
    os.waitpid(child, 0)
    ours = _ids()
    assert len(theirs) == len(ours)
    assert set(theirs).isdisjoint(ours)


def _ids() -> list[str]:
    """The random parts of ids: that of a response's follows its time and its version."""
    return [id for _ in range(100) for id in (new_id("msg").removeprefix("msg_"), new_response_id()[-16:])]
