"""What a request comes to: which replicas would come or go, or why none may. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from attrs import frozen

from rolecall.errors import ScaleRefused
from rolecall.ids import EngineId, ModelId, engine_id
from rolecall.placement.wording import counted
from rolecall.scaling.operation import Step
from rolecall.scaling.request import ScaleIn, ScaleOut


@frozen(kw_only=True)
class Standing:
    """A replica of the model. ``initial``: the job file asks for it. ``url``: of an engine run elsewhere."""

    engine: EngineId
    initial: bool
    url: str | None = None


@frozen(kw_only=True)
class Bounds:
    """What the job file says of a model's size.

    most: up to how many replicas it may have; None: it may not be scaled.
    external: whether engines that somebody else runs may be among them.
    """

    model: ModelId
    most: int | None
    external: bool


def plan_out(
    request: ScaleOut, standing: Sequence[Standing], bounds: Bounds, *, first_index: int
) -> list[Step]:
    """Return the replicas that would come, none if the request is met already.

    Args:
        standing: in the order in which they came.
        first_index: the lowest number that no replica of the model has had.

    Raises:
        ScaleRefused: it may not be; says what is allowed.
    """
    most = _most(bounds)
    if (request.total is None) == (not request.urls):
        raise ScaleRefused("give either a total, or URLs of engines that run already")
    names = (engine_id(bounds.model, index) for index in count(first_index))
    if request.total is not None:
        if request.total < len(standing):
            raise ScaleRefused(
                f"{bounds.model} has {counted(len(standing), 'replica')}, more than the {request.total} asked"
                " for; to have fewer, scale in"
            )
        steps = [Step(engine=next(names)) for _ in range(request.total - len(standing))]
    else:
        if not bounds.external:
            raise ScaleRefused(
                f"{bounds.model} takes no engines that somebody else runs; external_replicas = true in its"
                " table of the job file allows them"
            )
        known = {replica.url for replica in standing}
        steps = [Step(engine=next(names), url=url) for url in request.urls if url not in known]
    if len(standing) + len(steps) > most:
        raise ScaleRefused(
            f"{bounds.model} would have {len(standing) + len(steps)} replicas; its max_replicas is {most},"
            f" and it has {len(standing)} now"
        )
    return steps


def plan_in(request: ScaleIn, standing: Sequence[Standing], bounds: Bounds) -> list[Step]:
    """Return the replicas that would go, the last that came first; none if the request is met already.

    Raises:
        ScaleRefused: it may not be; says what is allowed.
    """
    _most(bounds)
    initial = sum(replica.initial for replica in standing)
    if request.total > len(standing):
        raise ScaleRefused(
            f"{bounds.model} has {counted(len(standing), 'replica')}, fewer than the {request.total} asked"
            " for; to have more, scale out"
        )
    if request.total < initial:
        raise ScaleRefused(
            f"{bounds.model} can't be scaled in to {request.total}: the {initial} that the job file asks for"
            " stay as long as the job runs"
        )
    added = [replica for replica in standing if not replica.initial]
    going = added[len(added) - (len(standing) - request.total) :]
    return [Step(engine=replica.engine, url=replica.url) for replica in reversed(going)]


def _most(bounds: Bounds) -> int:
    if bounds.most is None:
        raise ScaleRefused(
            f"{bounds.model} always has the replicas that the job file asks for; max_replicas in its table"
            " there lets it be scaled"
        )
    return bounds.most
