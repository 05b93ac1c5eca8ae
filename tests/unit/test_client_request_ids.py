"""Ids of requests: engines abort by prefix, so no id may be another's, nor begin with it."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

from rolecall.client.request_ids import unique_id


def _send_one(end: Connection) -> None:
    end.send(unique_id())


def test_no_id_is_another_s_nor_begins_with_it() -> None:
    ids = [unique_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert len({len(one) for one in ids}) == 1


def test_a_forked_process_has_ids_of_its_own() -> None:
    fork = multiprocessing.get_context("fork")
    mine = unique_id()
    here, there = fork.Pipe()
    child = fork.Process(target=_send_one, args=(there,))
    child.start()
    theirs = here.recv()
    child.join()
    assert theirs[:16] != mine[:16]
