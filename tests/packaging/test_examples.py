"""The distributions of ``plugins/examples`` keep their contracts where only their wheels are."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).parents[2] / "plugins" / "examples"
SETTINGS = """
[pytest]
addopts = --import-mode=importlib --strict-markers
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
"""


def test_their_own_tests_pass(installation: Any, example_wheels: Mapping[str, Path], tmp_path: Path) -> None:
    for name in example_wheels:
        shutil.copytree(EXAMPLES / name / "tests", tmp_path / name)
    (tmp_path / "pytest.ini").write_text(SETTINGS, encoding="utf-8")
    command = ("python", "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", str(tmp_path))
    said = installation.run(*command)
    passed = {name for name in example_wheels if re.search(rf"^PASSED \S*{name}/", said, re.MULTILINE)}
    assert passed == set(example_wheels)
