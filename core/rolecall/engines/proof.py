"""What an operator says has happened to engines that nobody can ask any more.

A claim, not yet a proof: whoever is told of it looks for himself, and goes by what he finds.
"""

from __future__ import annotations

from enum import StrEnum


class Proof(StrEnum):
    """What is claimed, and so where is looked.

    PROCESS_GONE: nothing of a dead worker's engine is left; its node is asked.
    NODE_GONE: its node is gone, and its processes with it; the cluster's table of nodes is asked. That
        the machine itself was switched off, and not just cut off, is the operator's word.
    """

    PROCESS_GONE = "process-gone"
    NODE_GONE = "node-gone"
