"""Who uses the product: the driver that makes batches, the consumer that trains on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rolecall.batches.concurrency import gather_bounded
from rolecall.batches.plan import StagePlan
from rolecall.batches.runner import BatchRunner
from rolecall.batches.sample import Prompt, Sample, ScoreFields, Scores
from rolecall.batches.schedule import order_stages
from rolecall.batches.sharing import Sharing
from rolecall.config.specs import BatchSection
from rolecall.errors import CommitTimeoutError, JobError, ModelUnavailableError, RolecallError, UpstreamError
from rolecall.ids import BatchId, FencingToken, OperationId, RoleName
from rolecall.interfaces.engine_backend import FromDisk, FromTensors, WeightUpdate
from rolecall.interfaces.role import GenerationContext, Stage, StageContext, WeightSource
from rolecall.job.training_turn import training_turn
from rolecall.leases.reconciliation import Claim, Reconciliation
from rolecall.leases.repeating import UnreachableError, repeating
from rolecall.train.consume import consume_async
from simulation.chance import Chance
from simulation.coordinator_host import OPERATION_S, CoordinatorHost
from simulation.faults import Faults
from simulation.fleet import Fleet, Service
from simulation.layouts import MAKER, TRAINER, Layout
from simulation.network import Endpoint, Network
from simulation.sink import SimSink, Storage, score
from simulation.world import Holder, World

T = TypeVar("T")

_ANSWER_S = 20.0
_SETTINGS = BatchSection(
    prompts="prompts.jsonl", prompts_per_batch=1, samples_per_prompt=2, max_concurrency=2
)
SAMPLES = _SETTINGS.prompts_per_batch * _SETTINGS.samples_per_prompt


class CoordinatorLink:
    """Implements :class:`~rolecall.leases.port.CoordinatorPort` from a caller's side of the network."""

    def __init__(self, network: Network, source: Endpoint, host: CoordinatorHost) -> None:
        self._network = network
        self._source = source
        self._host = host

    async def begin_batch(self, batch: BatchId) -> int:
        return await self._ask(
            f"begin batch {batch}", lambda: self._host.present.begin_batch(batch), brief=True
        )

    async def activate(
        self, batch: BatchId, role: RoleName, operation: OperationId, *, attempt: int | None = None
    ) -> FencingToken:
        return await self._ask(
            f"activate {role} for batch {batch}",
            lambda: self._host.present.activate(batch, role, operation, attempt=attempt),
            2 * OPERATION_S + _ANSWER_S,
        )

    async def deactivate(
        self, batch: BatchId, role: RoleName, operation: OperationId, *, attempt: int | None = None
    ) -> None:
        await self._ask(
            f"deactivate {role} for batch {batch}",
            lambda: self._host.present.deactivate(batch, role, operation, attempt=attempt),
            2 * OPERATION_S + _ANSWER_S,
        )

    async def commit_batch(self, batch: BatchId, *, acknowledged: bool, attempt: int | None = None) -> None:
        await self._ask(
            f"commit batch {batch}",
            lambda: self._host.present.commit_batch(batch, acknowledged=acknowledged, attempt=attempt),
            OPERATION_S + _ANSWER_S,
        )

    async def fail_batch(self, batch: BatchId, reason: str, *, attempt: int | None = None) -> None:
        await self._ask(
            f"fail batch {batch}: {reason:.80}",
            lambda: self._host.present.fail_batch(batch, reason, attempt=attempt),
            brief=True,
        )

    async def reconcile(self, role: RoleName, operation: OperationId, *, claim: Claim) -> Reconciliation:
        return await self._ask(
            f"reconcile {role}",
            lambda: self._host.present.reconcile(role, operation, claim=claim),
            4 * OPERATION_S + _ANSWER_S,
        )

    async def resume(self, operation: OperationId) -> BatchId:
        return await self._ask("resume", lambda: self._host.present.resume(operation))

    async def prepare(self, batch: BatchId, role: RoleName) -> None:
        """A head start changes no lease and fails no batch: so most are left out here."""
        if self._network.chance.happens(0.15):
            await self._ask(
                f"prepare {role}", lambda: self._host.present.prepare(batch, role), OPERATION_S + _ANSWER_S
            )

    async def wait_committed(self, batch: BatchId, timeout_s: float) -> None:
        await self._ask(
            f"wait for batch {batch}",
            lambda: self._host.present.wait_committed(batch, timeout_s),
            timeout_s + 5.0,
            silent=CommitTimeoutError,
        )

    async def status(self) -> Mapping[str, Any]:
        return await self._ask("status", self._host.present.status, brief=True)

    async def _ask(
        self,
        what: str,
        send: Callable[[], Coroutine[Any, Any, T]],
        limit_s: float = _ANSWER_S,
        silent: type[RolecallError] = JobError,
        *,
        brief: bool = False,
    ) -> T:
        def call() -> Coroutine[Any, Any, T]:
            return self._network.call(
                self._source,
                self._host.endpoint,
                what,
                send,
                silence=lambda: silent(f"the coordinator did not answer {what!r} within {limit_s:g} s"),
                death=lambda: UnreachableError(f"{what!r} had no answer, the coordinator is gone"),
                limit_s=limit_s,
                brief=brief,
            )

        return await repeating(what, call)


class RoleClient:
    """Asks a role's engines, as discovery shows them. A request is sent once."""

    def __init__(self, network: Network, source: Endpoint, service: Service) -> None:
        self._network = network
        self._source = source
        self._host = service
        self._turn = 0

    @property
    def serves(self) -> bool:
        """Whether discovery shows a replica that is ready."""
        return bool(self._host.serving())

    async def ask(self, what: str) -> str | None:
        """Return the weight version with which a request was served."""
        ready = self._host.serving()
        if not ready:
            raise ModelUnavailableError(f"no replica of {self._host.shape.name} is ready")
        self._turn += 1
        url, engine = ready[self._turn % len(ready)]

        async def work() -> str | None:
            if engine is None or not engine.awake or engine.hangs:
                raise UpstreamError(f"{url} does not serve")
            return engine.version

        def silent() -> Exception:
            return UpstreamError(f"{url} does not answer")

        return await self._network.call(
            self._source,
            self._host.endpoint,
            what,
            work,
            silence=silent,
            death=silent,
            limit_s=15.0,
            brief=True,
        )


class Driver:
    """Makes the batches of the job one after the other, from the next that is not committed."""

    def __init__(
        self,
        layout: Layout,
        *,
        world: World,
        network: Network,
        fleet: Fleet,
        storage: Storage,
        coordinator: Any,
        endpoint: Endpoint,
        faults: Faults,
    ) -> None:
        self._world = world
        self._network = network
        self._fleet = fleet
        self._coordinator = coordinator
        self._endpoint = endpoint
        self._chance = network.chance
        self._trainer = (
            TrainerProcess(world, layout.trainer, network.chance, endpoint) if layout.trainer else None
        )
        self._clients = {
            role.name: RoleClient(network, endpoint, fleet.services[role.name]) for role in layout.roles
        }
        self._faults = faults
        self._runner = BatchRunner(
            coordinator=coordinator,
            clients=self._clients.__getitem__,  # type: ignore[arg-type,return-value]
            plan=self._plan(layout),
            sink=SimSink(storage, "producer", endpoint),
            settings=_SETTINGS,
            clock=world.loop.time,
            emit=world.emit,
        )

    async def make(self, batches: range) -> None:
        """Make these batches; the first error ends it."""
        for number in batches:
            prompts = [
                Prompt(prompt_id=f"{number}/{place}", text="?")
                for place in range(_SETTINGS.prompts_per_batch)
            ]
            await self._runner.run(BatchId(number), prompts)
            if self._trainer is not None:
                async with training_turn(self._coordinator, BatchId(number), (TRAINER,)):
                    await self._trainer.train()
            if self._chance.happens(0.5):
                await self._update(FromDisk(path=Path(f"/weights/{number}")))

    async def _update(self, update: WeightUpdate) -> None:
        """Give the makers new weights, if they take any; what does not succeed is told, and goes on."""
        maker = self._fleet.services[MAKER]
        if maker.shape.source is WeightSource.STATIC:
            return
        self._fleet.updates += 1
        version = str(self._fleet.updates)

        def silent() -> Exception:
            return JobError(f"the update to {version} had no answer")

        try:
            await self._network.call(
                self._endpoint,
                maker.endpoint,
                f"weights {version} from {type(update).__name__}",
                lambda: maker.update_weights(update, version, OPERATION_S),
                silence=silent,
                death=silent,
                limit_s=OPERATION_S + _ANSWER_S,
            )
        except RolecallError as error:
            self._world.note("driver", f"weights {version}: {error}")

    def _plan(self, layout: Layout) -> StagePlan:
        stages = [self._stage(role.name) for role in layout.roles if role.name != MAKER]
        sharing = Sharing(layout.conflicts)
        return StagePlan(
            generation_role=MAKER,
            generate=self._generate,
            stages=order_stages(stages, awake=MAKER, sharing=sharing),
            sharing=sharing,
        )

    async def _generate(self, prompts: Sequence[Prompt], context: GenerationContext) -> Sequence[Sample]:
        client: Any = context.client
        # Tensors are gone once they were sent: a model that lacks them has to be given new ones.
        if not client.serves or self._chance.happens(0.2):
            await self._update(FromTensors(serialized=("…",)))
        samples: list[Sample] = []
        for prompt in prompts:
            version = await client.ask(f"generate {prompt.prompt_id}")
            samples += [
                Sample(
                    sample_id=f"{prompt.prompt_id}/{index}",
                    group_id=prompt.prompt_id,
                    prompt=prompt,
                    prompt_ids=(1,),
                    response="!",
                    response_ids=(2,),
                    rollout_log_probs=(-0.5,),
                    finish_reason="stop",
                    weight_version=version,
                )
                for index in range(context.samples_per_prompt)
            ]
        return samples

    def _stage(self, role: RoleName) -> Stage:
        name = f"{role} score"

        async def run(samples: Sequence[Sample], context: StageContext) -> Scores:
            client: Any = context.client

            async def ask(sample: Sample) -> ScoreFields:
                await client.ask(f"{name} {sample.sample_id}")
                if self._faults.failing_requests:
                    self._faults.failing_requests -= 1
                    raise UpstreamError("the engine answered 500")
                return {name: score(name, sample.sample_id)}

            scored = await gather_bounded(samples, ask, context.max_concurrency)
            return dict(zip((sample.sample_id for sample in samples), scored, strict=True))

        return Stage(name=name, role=role, reads=frozenset({"response"}), writes=frozenset({name}), run=run)


class TrainerProcess(Holder):
    """The trainer where it shares devices: it holds them while it trains, and not a moment longer."""

    def __init__(self, world: World, devices: frozenset[str], chance: Chance, process: Endpoint) -> None:
        self.role = TRAINER
        process.on_death.append(lambda: world.frees(self))
        self._world = world
        self._devices = tuple(sorted(devices))
        self._chance = chance

    def __str__(self) -> str:
        return "the trainer"

    async def train(self) -> None:
        self._world.takes(self, self._devices)
        try:
            await asyncio.sleep(self._chance.delay())
        finally:
            self._world.frees(self)


class Consumer:
    """Trains on the batches one after the other; started again, it goes on with the first it has not read."""

    def __init__(self, world: World, storage: Storage, coordinator: Any, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._world = world
        self._storage = storage
        self._coordinator = coordinator

    async def train(self, batches: int, timeout_s: float) -> None:
        world = self._world
        sink = SimSink(self._storage, "consumer", self._endpoint)
        wanted = range(len(world.read), batches)
        async for committed in consume_async(self._coordinator, sink, wanted, timeout_s=timeout_s):
            if not self._endpoint.alive:
                return  # what it read just now it read before its end
            world.consumed(committed.batch)
            wrong = self._storage.wrong(committed.batch, committed.rows)
            if wrong:
                world.violate("only whole batches are read", wrong)
            committed.clear()


def score_fields(layout: Layout) -> tuple[str, ...]:
    """The fields that every row of a layout's batches has."""
    return tuple(f"{role.name} score" for role in layout.roles if role.name != MAKER)
