"""``python tests/fault``: the fault matrix, see ``fault_matrix/command.py``."""

from __future__ import annotations

import sys
from pathlib import Path


def _main() -> int:
    folder = Path(__file__).parent
    sys.path[:0] = [str(folder), str(folder / "gated")]
    from fault_matrix.command import main

    return main()


if __name__ == "__main__":
    sys.exit(_main())
