"""Which of the cluster's nodes each pool's bundles go to, so that a plan that fits also is found to fit.

Pure. Left to itself, a cluster gives every group the emptiest nodes: two small pools that were planned side
by side on one node would each break into a node that a large engine needs whole. So the largest parts
choose first, and each takes the node on which the least stays free. It is a proposal: what a group really
got is probed and bound like any other.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

from rolecall.placement.plan import Pool

NodeName = str


def choose_nodes(
    pools: Sequence[Pool], free: Mapping[NodeName, int]
) -> dict[str, tuple[NodeName, ...]] | None:
    """Return the node of each bundle, by pool; None where no choice is found.

    Bundles that are planned on one node get one; the nodes of a pool are different. ``free`` has the free
    devices of each node.

    >>> from rolecall.placement.nodes import Nodes
    >>> small, large = (Pool(pool_id=str(n), resource="GPU", nodes=Nodes.of([n])) for n in (1, 2))
    >>> choose_nodes([small, large], {"a": 2, "b": 1})
    {'1': ('b',), '2': ('a', 'a')}
    """
    parts = [(size, pool.pool_id, part) for pool in pools for part, size in enumerate(pool.nodes.sizes())]
    names = list(free)
    rooms = sorted((devices, number) for number, devices in enumerate(free.values()) if devices > 0)
    taken: dict[str, set[int]] = {pool.pool_id: set() for pool in pools}
    of_part: dict[tuple[str, int], int] = {}
    for size, pool_id, part in sorted(parts, key=lambda part: -part[0]):
        room = bisect_left(rooms, (size, -1))
        while room < len(rooms) and rooms[room][1] in taken[pool_id]:
            room += 1
        if room == len(rooms):
            return None
        devices, number = rooms.pop(room)
        taken[pool_id].add(number)
        of_part[pool_id, part] = number
        if devices > size:
            insort(rooms, (devices - size, number))
    return {
        pool.pool_id: tuple(
            names[of_part[pool.pool_id, part]]
            for part, size in enumerate(pool.nodes.sizes())
            for _ in range(size)
        )
        for pool in pools
    }
