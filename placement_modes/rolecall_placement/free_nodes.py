"""What is left of the job's nodes while roles take their parts of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

from rolecall.api import Nodes, ReplicaPlacement, RoleDemand, engine_id


class FreeNodes:
    """Free devices of each node; those of one node are all alike."""

    def __init__(self, nodes: Nodes) -> None:
        self._sizes = list(nodes.sizes())
        self._free = list(self._sizes)

    def take(self, devices: int) -> Nodes | None:
        """Take devices wherever they are, from the first node on; None if there are too few."""
        if sum(self._free) < devices:
            return None
        parts: list[int] = []
        for node, free in enumerate(self._free):
            part = min(free, devices)
            if part:
                parts.append(part)
                self._free[node] -= part
                devices -= part
        return Nodes.of(parts)

    def take_role(self, role: RoleDemand) -> tuple[Nodes, tuple[ReplicaPlacement, ...]] | None:
        """Take what the role's engines need, each on the first node with room; None if one finds none.

        Returns:
            what is taken of each node, in the nodes' order, and the replicas on it.
        """
        taken: defaultdict[int, int] = defaultdict(int)
        first: list[tuple[int, int]] = []  # of each engine: node, and place in what the role has there
        for span, size in self.take_engines(role):
            if span is None:
                return None
            first.append((span.start, taken[span.start]))
            for node in span:
                taken[node] += size
        nodes = sorted(taken)
        starts = dict(zip(nodes, accumulate((taken[node] for node in nodes), initial=0), strict=False))
        engines = ((model, index) for model in role.models for index in range(model.replicas))
        replicas = [
            ReplicaPlacement(
                engine=engine_id(model.model, index),
                role=role.role,
                model=model.model,
                pool_id=role.role,
                bundles=tuple(range(starts[node] + offset, starts[node] + offset + model.devices_per_engine)),
            )
            for (model, index), (node, offset) in zip(engines, first, strict=True)
        ]
        return Nodes.of(taken[node] for node in nodes), tuple(replicas)

    def take_engines(self, role: RoleDemand) -> Iterator[tuple[range | None, int]]:
        """Take what each engine needs and return its nodes and its devices on each; None where it has no
        room, which is the end."""
        for model in role.models:
            node = 0
            for _ in range(model.replicas):
                span = self._room(node, model.devices_per_engine)
                if span is None:
                    yield None, 0
                    return
                node = span.start  # what is full for one engine is full for the next of its size
                size = model.devices_per_engine // len(span)
                for part in span:
                    self._free[part] -= size
                yield span, size

    def _room(self, node: int, devices: int) -> range | None:
        """The first nodes from ``node`` on that an engine may lie on."""
        while node < len(self._free):
            size = self._sizes[node]
            if devices <= self._free[node]:
                return range(node, node + 1)
            span = range(node, node + devices // size)
            whole = devices % size == 0 and span.stop <= len(self._free)
            if whole and all(self._free[part] == self._sizes[part] == size for part in span):
                return span
            node += 1
        return None
