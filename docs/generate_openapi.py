"""Write ``docs/openapi/``: the OpenAPI document of each role that comes with rolecall.

Usage: ``python docs/generate_openapi.py``. A test compares the files with what this writes, and another holds
gateways that run against them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rolecall.gateway.openapi import openapi_document
from rolecall.plugins.host import PluginHost
from rolecall.plugins.kinds import PluginKind

FOLDER = Path(__file__).parent / "openapi"


def documents() -> dict[str, dict[str, Any]]:
    """Return each role's document by its file's name."""
    host = PluginHost.from_environment()
    roles = [
        info.name for info in host.list() if info.kind is PluginKind.ROLE and info.distribution == "rolecall"
    ]
    plugins = {role: host.load(PluginKind.ROLE, role) for role in sorted(roles)}
    return {
        f"{role}.json": openapi_document(role, plugin(plugin.options())) for role, plugin in plugins.items()
    }


def written(document: dict[str, Any]) -> str:
    """Return a document as its file has it."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, document in documents().items():
        (FOLDER / name).write_text(written(document), encoding="utf-8")
