"""Modules beside the tests; ``explore.py`` finds them in the same way."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
