"""The matrix is a package beside its tests; ``python tests/fault`` finds it in the same way."""

from __future__ import annotations

import sys
from pathlib import Path

_FOLDER = Path(__file__).parent
sys.path[:0] = [str(_FOLDER), str(_FOLDER / "gated")]
