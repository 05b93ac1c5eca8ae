"""Prefill/decode pairs: what their engines are started with, and what a router is told of them."""

from __future__ import annotations

import doctest
from pathlib import Path

from rolecall.discovery.snapshot import ModelState
from rolecall.discovery.topology import RoleTopology, build_routing, new_epoch
from rolecall.engines.deadline import LoopClock
from rolecall.engines.ports import PortRange, reserve_port
from rolecall.events.event import discard
from rolecall.ids import ModelId, RoleName
from rolecall.interfaces.engine_backend import Disaggregation
from rolecall.interfaces.router import RouterWorker
from rolecall.routers import pairs
from rolecall.routers.keeper import RouterKeeper, RouterPlace
from rolecall.testing.fake_engine import FakeEngine
from rolecall.testing.fake_router import FakeRouterBackend, FakeRouterOptions
from rolecall.testing.manager_rig import ManagerRig, ok, within
from rolecall.testing.virtual_time import run_virtual

PREFILL, DECODE = "m/replica-0", "m/replica-1"


def test_examples_in_the_text() -> None:
    assert doctest.testmod(pairs).failed == 0


def test_a_pair_is_started_told_and_hidden(tmp_path: Path) -> None:
    async def scenario() -> None:
        backend = FakeRouterBackend()
        place = RouterPlace(
            role=RoleName("judge"),
            model=ModelId("m"),
            served_model_name="served",
            host="127.0.0.1",
            pairs=True,
            log_dir=tmp_path,
            options=FakeRouterOptions(),
        )

        async def changed() -> None: ...

        keeper = RouterKeeper(backend, place, clock=LoopClock(), emit=discard, changed=changed)
        await keeper.start()
        assert backend.router.launch.pairs
        rig = ManagerRig(tmp_path, membership=keeper, prefill=1)
        assert ok(await rig.manager.start())
        engines: dict[str, FakeEngine] = {name: rig.worker(name).engine for name in (PREFILL, DECODE)}
        launches = {name: engine.launch for name, engine in engines.items()}
        assert launches[PREFILL].disaggregation is Disaggregation.PREFILL
        port = launches[PREFILL].bootstrap_port
        assert port in PortRange.BOOTSTRAP.value
        assert (launches[DECODE].disaggregation, launches[DECODE].bootstrap_port) == (
            Disaggregation.DECODE,
            None,
        )
        workers = {worker.half: worker for worker in backend.router.workers.values()}
        assert workers == {
            Disaggregation.PREFILL: RouterWorker(
                base_url=rig.manager.view().engines[0].base_url or "",
                half=Disaggregation.PREFILL,
                bootstrap_port=port,
            ),
            Disaggregation.DECODE: RouterWorker(
                base_url=rig.manager.view().engines[1].base_url or "", half=Disaggregation.DECODE
            ),
        }
        routing = build_routing(
            served_names={"m": "served"}, default_model=None, route_keys={}, aliases={}, policy="p"
        )
        topology = RoleTopology(RoleName("judge"), routing, new_epoch())
        shown = topology.update({"m": rig.manager.view()})[0].models["m"]
        assert (shown.state, shown.engines, shown.router_url) == (ModelState.READY, (), keeper.router_url)
        # Half a pair serves nobody.
        assert ok(await rig.manager.stop(DECODE, within(60)))
        shown = topology.update({"m": rig.manager.view()})[0].models["m"]
        assert shown.state is not ModelState.READY
        assert ok(await rig.manager.shutdown(within(60)))
        await keeper.stop()
        again = reserve_port("127.0.0.1", PortRange.BOOTSTRAP, start=port)
        assert again.port == port, "its bootstrap port was given back"
        again.release()

    run_virtual(scenario())
