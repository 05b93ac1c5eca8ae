"""A few cells of the matrix, one a subject, on one job; ``python tests/fault`` runs all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fault_matrix.cell_run import Run
from fault_matrix.cells import Cell, Fault, Phase, Subject
from fault_matrix.job import Job

pytestmark = [pytest.mark.ray, pytest.mark.model, pytest.mark.timeout(300)]

RESUMED = {"failed, resumed", "fenced, reconciled, resumed"}
COMMITTED = {"committed"}

CELLS = {
    Cell(Subject.CONSUMER, Phase.COMMIT, Fault.KILL): COMMITTED,
    Cell(Subject.GATEWAY, Phase.PUT, Fault.NETWORK): COMMITTED,
    Cell(Subject.MANAGER, Phase.JUDGE, Fault.STOP): COMMITTED,
    Cell(Subject.ENGINE, Phase.GENERATE, Fault.KILL): RESUMED,
    Cell(Subject.WORKER, Phase.OFFLOAD, Fault.KILL): COMMITTED | RESUMED,
}


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    job = Job("jsonl")
    try:
        yield Run(job)
    finally:
        job.close()


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_invariants_hold_after(cell: Cell, run: Run):
    result = run.cell(cell)
    assert result.problems == ()
    assert result.outcome in CELLS[cell], result.detail


def test_the_job_leaves_nothing(run: Run):
    assert run.starts == 1, "every cell left the job fit for the next one"
    assert run.close() == []
