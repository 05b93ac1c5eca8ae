"""The job that the failing rows are tried on does work."""

from __future__ import annotations

from typing import Any


def test_without_a_failure_the_batch_reaches_its_consumer(play: Any) -> None:
    """What the other tests break does work."""

    async def scenario(job: Any) -> None:
        await job.run()
        assert job.converted == [0]
        await job.coordinator.wait_committed(0, 0.0)
        assert len(job.sink.read("train_0")) == len(job.made)
        await job.assert_all_asleep()

    play(scenario)
