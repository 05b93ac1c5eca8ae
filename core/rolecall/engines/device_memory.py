"""Device memory by process, as the GPU driver books it. Pure reading; the library is optional.

NVML is asked through ``pynvml``, which engines for GPUs bring with them; without it, or without
a driver, nothing is known, and that is what is said.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Collection, Mapping
from typing import Any

logger = logging.getLogger(__name__)


def device_memory_of(pids: Collection[int]) -> Mapping[int, int] | None:
    """Return the bytes that each process holds on this node's GPUs, without those that hold none.

    None if NVML can't be asked here. A process whose share the driver does not tell counts as
    holding one byte: it has a context, so it is not gone.
    """
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        logger.info("NVML is installed, but can't be used: %s", error)
        return None
    held: dict[int, int] = {}
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(device):
                if process.pid in pids:
                    held[process.pid] = held.get(process.pid, 0) + (process.usedGpuMemory or 1)
    except nvml.NVMLError as error:
        logger.warning("NVML did not tell who holds device memory: %s", error)
        return None
    finally:
        nvml.nvmlShutdown()
    return held
