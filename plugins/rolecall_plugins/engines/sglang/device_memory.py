"""Device memory that an engine holds, by NVML's count. Imports ``pynvml`` when first asked.

NVML counts by process, where it can: inside a container it may name processes by ids of the host, or none
at all. Then the whole device's figure is taken. Among tenants of one device only one is awake, so that its
memory leaves is seen there as well; what the sleeping ones keep is then counted with it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import cache
from typing import Any

from rolecall.api import EngineError


def used_device_memory(device_ids: Sequence[str], pids: Set[int]) -> int:
    """Return the bytes of device memory that the processes hold on these devices.

    ``device_ids`` are physical: numbers or UUIDs, as in ``CUDA_VISIBLE_DEVICES``.

    Raises:
        EngineError: NVML can't be asked, or does not know a device.
    """
    nvml = _initialised()
    try:
        devices = [_device(nvml, device_id) for device_id in device_ids]
        by_process = _by_process(nvml, devices, pids)
        if by_process is not None:
            return by_process
        return sum(nvml.nvmlDeviceGetMemoryInfo(device).used for device in devices)
    except nvml.NVMLError as error:
        raise EngineError(
            f"device memory of {', '.join(device_ids)} can't be measured: NVML says {error}"
        ) from error


@cache
def _initialised() -> Any:
    """Return NVML, initialised once a process: that takes 20 ms, and a hand-over measures three times."""
    try:
        import pynvml  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise EngineError(
            "device memory can't be measured: the package nvidia-ml-py is missing; install rolecall[sglang]"
        ) from error
    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise EngineError(f"device memory can't be measured: NVML does not start here: {error}") from error
    return nvml


def _device(nvml: Any, device_id: str) -> Any:
    if device_id.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(device_id))
    return nvml.nvmlDeviceGetHandleByUUID(device_id)


def _by_process(nvml: Any, devices: Sequence[Any], pids: Set[int]) -> int | None:
    """Return the sum over the processes, None if NVML does not know all it would take."""
    found = [
        process.usedGpuMemory
        for device in devices
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(device)
        if process.pid in pids
    ]
    return None if not found or None in found else sum(found)
