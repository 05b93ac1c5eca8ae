"""A job on a Ray cluster that somebody else runs: it comes, works, and leaves it as it was."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.model, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(command) -> Iterator[Cluster]:
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2,
            "resources": {"device_slot": 1},
            "include_dashboard": False,
            "object_store_memory": 100 * 1024**2,
        },
    )
    # The token that Ray made for this cluster is in the real home.
    command.environment["HOME"] = os.environ["HOME"]
    yield cluster
    cluster.shutdown()


def test_a_job_joins_runs_and_leaves_the_cluster_running(
    command, cluster: Cluster, small_job: Callable[..., str], until: Callable[..., None]
):
    text = small_job("guest", batches=1)
    (command.folder / "job.toml").write_text(f'{text}\n[cluster]\naddress = "{cluster.address}"\n')
    result = command.run("run", "job.toml")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 of 1 batches committed" in result.stdout
    command.wait_until_gone(timeout_s=10)
    with ray.init(address=cluster.address, log_to_driver=False):
        groups = ray.util.placement_group_table().values()
        assert [group for group in groups if group["state"] != "REMOVED"] == []
        until(lambda: ray.available_resources().get("device_slot") == 1.0, 30)


def test_a_killed_command_line_leaves_nothing_on_the_cluster(
    command, cluster: Cluster, small_job: Callable[..., str], until: Callable[..., None]
):
    text = small_job("guest", batches=1, max_new_tokens=256)
    (command.folder / "job.toml").write_text(f'{text}\n[cluster]\naddress = "{cluster.address}"\n')
    (command.folder / "events.jsonl").unlink(missing_ok=True)
    process = command.start("run", "job.toml")

    def stage_started() -> bool:
        assert process.poll() is None, command.output()
        return any(event["kind"] == "stage.state" for event in command.events())

    until(stage_started, 150, command.output)
    process.kill()
    process.wait()
    command.wait_until_gone(timeout_s=90)
    engines = [p for p in psutil.process_iter(["cmdline"]) if str(command.folder) in str(p.info["cmdline"])]
    assert engines == []
    with ray.init(address=cluster.address, log_to_driver=False):
        until(lambda: ray.available_resources().get("device_slot") == 1.0, 60)
        actors = ray.util.list_named_actors(all_namespaces=True)
        assert [actor for actor in actors if "guest" in actor["namespace"] or "guest" in actor["name"]] == []
