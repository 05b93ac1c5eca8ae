"""How the bundles of a pool lie on nodes, and where on them an engine may lie.

Pure arithmetic. Bundles are numbered node by node. An engine lies on one node, or on whole nodes of one
size. This module knows no modes and never refuses: where there is no room it says None, and the caller
says why. Equal nodes in a row are kept as one run, so that a hundred thousand devices cost what eight do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, repeat

from attrs import field, frozen, validators

_positive = validators.gt(0)


@frozen
class NodeRun:
    """``count`` nodes in a row with ``devices`` each; None: as many as anybody wants."""

    count: int | None = field(validator=validators.optional(_positive))
    devices: int = field(validator=_positive)


@frozen
class Nodes:
    """The nodes of a pool, in the order of its bundles; only the last run may be without end.

    >>> Nodes.of([8, 8, 4]).devices
    20
    >>> Nodes.equal(20, per_node=8) == Nodes.of([8, 8, 4])
    True
    """

    runs: tuple[NodeRun, ...]

    @classmethod
    def of(cls, sizes: Iterable[int]) -> Nodes:
        """Return nodes of these sizes."""
        return cls(tuple(NodeRun(sum(1 for _ in same), size) for size, same in groupby(sizes)))

    @classmethod
    def equal(cls, devices: int, *, per_node: int) -> Nodes:
        """Return ``devices`` on nodes of ``per_node``; the last one has what is left."""
        whole, left = divmod(devices, per_node)
        return cls(
            tuple(NodeRun(count, size) for count, size in ((whole, per_node), (1, left)) if count and size)
        )

    @classmethod
    def endless(cls, per_node: int) -> Nodes:
        """Return as many nodes of ``per_node`` as anybody wants."""
        return cls((NodeRun(None, per_node),))

    @property
    def devices(self) -> int | None:
        """How many there are; None without end."""
        total = 0
        for run in self.runs:
            if run.count is None:
                return None
            total += run.count * run.devices
        return total

    @property
    def largest(self) -> int:
        """Devices of the largest node."""
        return max(run.devices for run in self.runs)

    def sizes(self) -> Iterator[int]:
        """Return each node's devices, in order; without end if there is none."""
        for run in self.runs:
            yield from repeat(run.devices) if run.count is None else repeat(run.devices, run.count)

    def node_of(self, bundle: int) -> tuple[int, range]:
        """Return the number of a bundle's node, and all bundles of that node.

        Raises:
            IndexError: there is no such bundle.
        """
        node = first = 0
        for run in self.runs:
            number = (bundle - first) // run.devices
            if number < 0:
                break
            if run.count is None or number < run.count:
                start = first + number * run.devices
                return node + number, range(start, start + run.devices)
            node, first = node + run.count, first + run.count * run.devices
        raise IndexError(f"no node has bundle {bundle}")

    def room(self, free_from: int, devices: int, engines: int) -> list[range] | None:
        """Return where engines start, one after the other from ``free_from`` on; None: not all have room.

        >>> [list(starts) for starts in Nodes.of([8, 8]).room(1, 3, engines=4)]  # 7 to 9 are on two nodes
        [[1, 4], [8, 11]]
        >>> Nodes.of([8, 8, 8]).room(1, 16, engines=1)[0][0]  # two whole nodes
        8
        """
        found: list[range] = []
        for stretch in self._stretches(free_from, devices):
            found.append(stretch[:engines])
            engines -= len(found[-1])
            if not engines:
                return found
        return None

    def first_start(self, free_from: int, devices: int) -> int | None:
        """Return the first bundle at or after ``free_from`` where an engine may start; None: nowhere."""
        found = self.room(free_from, devices, engines=1)
        return None if found is None else found[0][0]

    def _stretches(self, free_from: int, devices: int) -> Iterator[range]:
        """Where engines may start until there is no more room, those without a gap between them at once."""
        first = 0
        for run in self.runs:
            end = sys.maxsize if run.count is None else first + run.count * run.devices
            start = max(first, free_from)
            into_node = (start - first) % run.devices
            if into_node and start < end:
                node_end = start + run.devices - into_node
                if start + devices <= node_end:
                    yield range(start, node_end - devices + 1, devices)
                start = node_end
            if run.devices % devices == 0 or devices % run.devices == 0:
                if start + devices <= end:
                    yield range(start, end - devices + 1, devices)
            elif devices < run.devices:
                for node in range(start, end, run.devices):
                    yield range(node, node + run.devices - devices + 1, devices)
            first = end

    def divide(self, bundles: range) -> Mapping[int, range]:
        """Return the numbers of the nodes that bundles lie on, each with those that lie there.

        >>> Nodes.of([8, 8, 8]).divide(range(4, 20))
        {0: range(4, 8), 1: range(8, 16), 2: range(16, 20)}
        """
        found: dict[int, range] = {}
        bundle = bundles.start
        while bundle < bundles.stop:
            number, node = self.node_of(bundle)
            found[number] = range(bundle, min(node.stop, bundles.stop))
            bundle = node.stop
        return found

    def parts(self, bundles: range) -> Nodes:
        """Return what the bundles cover of each node, as nodes.

        >>> Nodes.of([8, 8, 8]).parts(range(4, 20)) == Nodes.of([4, 8, 4])
        True
        """
        return Nodes.of(map(len, self.divide(bundles).values()))

    def whole(self, bundles: range) -> bool:
        """Whether the bundles lie on one node, or are whole nodes of one size: an engine may lie there."""
        node, last = self.node_of(bundles[0])[1], self.node_of(bundles[-1])[1]
        return node == last or (
            (bundles[0], bundles[-1]) == (node[0], last[-1]) and len(self.parts(bundles).runs) == 1
        )
