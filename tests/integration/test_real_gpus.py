"""Real GPUs: the device that was planned is the one that Ray gives, and the one that CUDA opens.

Pitfalls 8 and 10: a GPU's id is taken from the bundle, never computed, also under a restricted
``CUDA_VISIBLE_DEVICES``. Every GPU of the machine is planned; two let the restriction be seen.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator

import pytest
import ray

from rolecall.api import RoleName, TrainingDemand
from rolecall.cluster.ray_cluster import pools_of
from rolecall.cluster.scheduling import in_bundle
from rolecall.job.training_devices import training_devices
from rolecall.placement.preflight import plan_placement
from rolecall.testing.demands import placement_job, role_demand
from rolecall_placement.split import Split


def gpus() -> tuple[str, ...]:
    """UUIDs of the machine's GPUs, in the order of their physical ids."""
    if shutil.which("nvidia-smi") is None:
        return ()
    ask = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    listed = subprocess.run(ask, capture_output=True, text=True, check=False)
    return tuple(listed.stdout.split()) if listed.returncode == 0 else ()


GPUS = gpus()
pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not GPUS, reason="needs a GPU: CUDA opens the device that was planned"),
]


@ray.remote(num_cpus=0)
class OnDevice:
    """Any process of an engine or a trainer."""

    def opened(self) -> list[str]:
        """UUIDs of the devices that CUDA sees here."""
        cuda = ctypes.CDLL("libcuda.so.1")
        assert cuda.cuInit(0) == 0
        count = ctypes.c_int()
        assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
        found: list[str] = []
        for index in range(count.value):
            uuid = (ctypes.c_ubyte * 16)()
            assert cuda.cuDeviceGetUuid_v2(uuid, index) == 0
            text = bytes(uuid).hex()
            found.append("GPU-" + "-".join([text[:8], text[8:12], text[12:16], text[16:20], text[20:]]))
        return found


@pytest.fixture(params=["all", "last"])
def visible(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A Ray on all GPUs or, by ``CUDA_VISIBLE_DEVICES``, on the last only."""
    ids = list(range(len(GPUS))) if request.param == "all" else [len(GPUS) - 1]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if request.param == "last":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, ids)))
    ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=2)
    yield ids
    ray.shutdown()


def test_planned_bound_and_opened_are_one_device(visible: list[int]) -> None:
    trainer = TrainingDemand(role=RoleName("actor"), devices=len(visible), offload=True)
    job = placement_job(
        role_demand("writer", (len(visible), 1)),
        devices=len(visible),
        per_node=len(visible),
        training=(trainer,),
    )
    planned = plan_placement(job, Split())
    with pools_of(planned, job="real-gpus") as pools:
        handle = pools.groups.handles["shared"]
        trainers = training_devices(pools.bound, pools.groups.names)
        assert [device.device_id for device in trainers] == [str(index) for index in visible]
        for replica, device in zip(pools.bound.replicas, trainers, strict=True):
            (worker,) = replica.workers
            assert worker.device_ids == (device.device_id,)
            expected = [GPUS[int(device.device_id)]]
            options = in_bundle(handle, worker.bundles[0], "GPU", worker.reservation)
            engine = OnDevice.options(**options).remote()
            train = OnDevice.options(**device.actor_options()).remote()
            # Both at once: the two reservations fit on the one device.
            assert ray.get([engine.opened.remote(), train.opened.remote()], timeout=120) == [expected] * 2
