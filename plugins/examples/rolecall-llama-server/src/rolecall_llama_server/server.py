"""The engine's process: ``python -m rolecall_llama_server.server``, the adapter with its llama.cpp server.

Started by the backend's engine object; the options below are its whole interface. It ends when the llama.cpp
server ends by itself, since it could serve nothing any more.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import uvicorn

from .app import build_app
from .llama import LlamaFault, LlamaServer, LlamaSettings
from .service import Service


def main() -> None:
    """Entry point."""
    try:
        asyncio.run(_serve(_parser().parse_args()))
    except LlamaFault as error:
        sys.exit(str(error))


async def _serve(given: argparse.Namespace) -> None:
    settings = LlamaSettings(
        folder=given.folder,
        context_tokens=given.context_tokens,
        parallel_requests=given.parallel_requests,
        threads=given.threads,
        binary=given.binary,
        arguments=tuple(given.arguments),
    )
    llama = LlamaServer(settings, _model_file(given.model_path))
    await llama.start()
    service = Service(llama, served_model_name=given.served_model_name, weight_version=given.weight_version)
    server = uvicorn.Server(
        uvicorn.Config(
            build_app(service),
            host=given.host,
            port=given.port,
            log_level="warning",
            timeout_graceful_shutdown=2,
        )
    )
    serving = asyncio.create_task(server.serve())
    ended = asyncio.create_task(llama.ended())
    await asyncio.wait({serving, ended}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        ended.cancel()
        serving.result()
        return
    server.should_exit = True
    await serving
    raise LlamaFault(f"the llama.cpp server ended by itself with code {ended.result()}")


def _model_file(path: Path) -> Path:
    """The GGUF file that ``path`` is, or the only one in the folder that it is."""
    if path.is_file():
        return path
    found = sorted(path.glob("*.gguf"))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise LlamaFault(f"{path}: one GGUF file is expected there; found: {names}")
    return found[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"{__package__}.server", description=__doc__)
    parser.add_argument("--model-path", type=Path, required=True, help="GGUF file, or a folder with one")
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="of the socket file")
    parser.add_argument("--context-tokens", type=int, required=True, help="of one request, answer included")
    parser.add_argument("--parallel-requests", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--weight-version", default="default")
    parser.add_argument("--binary", help="a llama-server; default: the one in the package xllamacpp")
    parser.add_argument("arguments", nargs="*", help="of the binary, after --")
    return parser


if __name__ == "__main__":
    main()
