"""The simulation is a package beside its tests; ``simulate.py`` finds it in the same way."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
