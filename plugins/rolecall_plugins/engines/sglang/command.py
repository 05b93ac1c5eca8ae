"""What starts SGLang for a launch: the command line and the environment. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Set

from rolecall.api import EngineLaunch, EngineStartError

from .options import Device, SglangOptions, WeightsAsleep
from .server_flags import as_arguments


def server_command(launch: EngineLaunch, known_flags: Set[str]) -> list[str]:
    """Return the command of the engine's process, without what the weights holder adds.

    ``known_flags`` are those that the installed SGLang takes, as far as that is known.

    Raises:
        EngineStartError: the devices can't be divided as the options say.
    """
    options: SglangOptions = launch.options
    command = [interpreter(options), "-m", "sglang.launch_server"]
    command += ["--model-path", str(launch.model_path), "--served-model-name", launch.served_model_name]
    command += ["--host", launch.host, "--port", str(launch.port), "--device", options.device.value]
    command += ["--tp-size", str(tensor_parallel(launch)), "--pp-size", str(launch.pipeline_parallel)]
    if launch.collectives_port is not None:
        command += ["--nccl-port", str(launch.collectives_port)]
    if launch.nodes > 1 and launch.rendezvous is not None:
        command += ["--nnodes", str(launch.nodes), "--node-rank", str(launch.node_rank)]
        command += ["--dist-init-addr", launch.rendezvous]
    if launch.weight_version is not None:
        command += ["--weight-version", launch.weight_version]
    if launch.disaggregation is not None:
        command += ["--disaggregation-mode", launch.disaggregation.value]
    if launch.bootstrap_port is not None:
        command += ["--disaggregation-bootstrap-port", str(launch.bootstrap_port)]
    if options.saves_memory:
        command.append("--enable-memory-saver")
        if options.weights_asleep is WeightsAsleep.MEMORY_SAVER:
            command.append("--enable-weights-cpu-backup")
    # By default the server logs every request, also the looks that rolecall takes all the time.
    server_args = {"log_level_http": "warning", **options.server_args}
    return command + as_arguments(server_args, known_flags)


def server_environment(launch: EngineLaunch) -> Mapping[str, str]:
    """Return the environment variables of the engine's process that differ from its worker's."""
    options: SglangOptions = launch.options
    devices = launch.device_ids if options.device is Device.CUDA else ()
    return {
        "PYTHONUNBUFFERED": "1",
        **options.environment,
        # Physical ids in, so that inside they count from 0, whatever else the node has.
        "CUDA_VISIBLE_DEVICES": ",".join(devices),
        # Otherwise /health of newer releases runs a token, and a paused engine answers after 20 s.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
    }


def interpreter(options: SglangOptions) -> str:
    """Return the path of the interpreter that has SGLang."""
    return options.python or sys.executable


def tensor_parallel(launch: EngineLaunch) -> int:
    """Return the devices that share each layer, which SGLang calls the tensor-parallel size.

    rolecall counts all devices of an engine in tensor_parallel × pipeline_parallel; data-parallel copies
    of the model take theirs from tensor_parallel.

    Raises:
        EngineStartError: the copies can't have the same number of devices.
    """
    copies = launch.options.data_parallel
    if copies < 1 or launch.tensor_parallel % copies:
        raise EngineStartError(
            f"engine {launch.engine_id}: dp_size = {copies} does not divide tensor_parallel = "
            f"{launch.tensor_parallel}; each data-parallel copy needs the same number of devices. Change "
            "engine_options.server_args.dp_size, or devices_per_engine and tensor_parallel"
        )
    return launch.tensor_parallel // copies
