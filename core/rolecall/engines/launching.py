"""What one start of an engine is given: its ports, its log file, its marks, its launch.

Owned by the engine host, one for each start, from before the engine exists until it is gone. It holds
every port until the engine, or the door in front of it, has it; and gives all of them back at the
end. It starts and stops nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import frozen

from rolecall.engines.admission import Admission, MakeDoor, wants_door
from rolecall.engines.handover import HandoverLimits
from rolecall.engines.ports import PortRange, PortReservation, reserve_block, reserve_port
from rolecall.engines.reaping import EngineMark
from rolecall.engines.worker_handle import WorkerSlot
from rolecall.ids import ModelId, RoleName
from rolecall.interfaces.engine_backend import (
    Disaggregation,
    EngineBackend,
    EngineFeatures,
    EngineLaunch,
)
from rolecall.interfaces.role import WeightSource
from rolecall.processes.marks import RUN_DIR_VARIABLE

LOOPBACK = "127.0.0.1"

RENDEZVOUS_PORTS = 32
"""Engines take the ports that follow the rendezvous' own for their other sockets between nodes, a few
and one more for each data-parallel rank."""


@frozen(kw_only=True)
class HostSetup:
    """What a host must know to start its slot's engine. Picklable.

    namespace: of the job; with role, engine and incarnation it marks the engine's processes.
    listen_host: address that requests come to: the door's, or that of an engine without a door.
    log_dir: folder of engine logs, one file an incarnation; made when needed.
    run: run folder of the job's process, which marks the engine's processes, too.
    tensor_parallel, pipeline_parallel: how the replica's devices, on all its nodes, are used.
    """

    namespace: str
    slot: WorkerSlot
    role: RoleName
    model: ModelId
    served_model_name: str
    weight_source: WeightSource
    listen_host: str
    log_dir: Path
    limits: HandoverLimits
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    run: str = ""


@frozen(kw_only=True)
class Prepared:
    """A loaded backend with its options, and the model's files on this node."""

    backend: EngineBackend
    options: Any
    features: EngineFeatures
    model_path: Path


class Launching:
    """See the module's contract. What ``launch`` makes is None until it was called, or if it isn't needed."""

    def __init__(self, setup: HostSetup, incarnation: int) -> None:
        self.incarnation = incarnation
        self.log_path: Path | None = None
        self.door: Admission | None = None
        self.bootstrap_port: int | None = None
        self._setup = setup
        self._ports: list[PortReservation] = []

    def meet(self) -> str:
        """Reserve where the processes of all nodes will meet; called on the head's node.

        Raises:
            EngineError: all such ports of the node are in use.
        """
        host = self._setup.slot.node_ip
        block = reserve_block(host, PortRange.DISTRIBUTED_INIT, RENDEZVOUS_PORTS)
        self._ports += block
        return f"[{host}]:{block[0].port}" if ":" in host else f"{host}:{block[0].port}"

    def launch(
        self,
        prepared: Prepared,
        weight_version: str | None,
        rendezvous: str | None,
        make_door: MakeDoor | None,
    ) -> EngineLaunch:
        """Reserve the other ports, make the door, and return the launch."""
        setup, slot = self._setup, self._setup.slot
        setup.log_dir.mkdir(parents=True, exist_ok=True)
        rank = f"-node{slot.node_rank}" if slot.nodes > 1 else ""
        name = f"{setup.role}-{slot.engine.replace('/', '-')}-{self.incarnation}{rank}.log"
        self.log_path = setup.log_dir / name
        host = setup.listen_host
        if make_door is not None and slot.is_head and wants_door(prepared.features):
            # A prefill engine hands its cache over at a port of its own, on the address it binds.
            host = LOOPBACK if slot.half is None else setup.listen_host
            self.door = make_door(self._reserve(setup.listen_host, PortRange.SERVER).take_socket())
        if slot.is_head and slot.half is Disaggregation.PREFILL:
            self.bootstrap_port = self._reserve(host, PortRange.BOOTSTRAP).port
        mark = EngineMark(
            namespace=setup.namespace, role=setup.role, engine=slot.engine, incarnation=self.incarnation
        )
        return EngineLaunch(
            engine_id=slot.engine,
            role=setup.role,
            model=setup.model,
            model_path=prepared.model_path,
            served_model_name=setup.served_model_name,
            host=host,
            port=self._reserve(host, PortRange.SERVER).port,
            collectives_port=self._reserve(LOOPBACK, PortRange.COLLECTIVES).port,
            device_ids=slot.device_ids,
            tensor_parallel=setup.tensor_parallel,
            pipeline_parallel=setup.pipeline_parallel,
            nodes=slot.nodes,
            node_rank=slot.node_rank,
            rendezvous=rendezvous,
            disaggregation=slot.half,
            bootstrap_port=self.bootstrap_port,
            weight_version=weight_version,
            log_path=self.log_path,
            options=prepared.options,
            marks={**mark.variables(), **({RUN_DIR_VARIABLE: setup.run} if setup.run else {})},
        )

    def hand_over(self) -> None:
        """Let go of the sockets, so that the engine can bind them. The ports stay claimed."""
        for port in self._ports:
            port.hand_over()

    def release(self) -> None:
        """Give all ports back. Repeats do nothing."""
        for port in self._ports:
            port.release()

    def _reserve(self, host: str, purpose: PortRange) -> PortReservation:
        port = reserve_port(host, purpose)
        self._ports.append(port)
        return port
