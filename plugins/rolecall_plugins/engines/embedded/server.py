"""The engine's process: ``python -m rolecall_plugins.engines.embedded.server``.

Serves one small language model on the CPU over SGLang's HTTP protocol. Started by the backend's
engine object; the options below are its whole interface. Ends on SIGTERM after aborting what runs.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> None:
    """Parse the options, load the model, serve until told to stop."""
    options = _parser().parse_args(arguments)
    _limit_blas_threads(options.threads)
    _raise_file_limit()

    import uvicorn

    from .app import build_app
    from .gguf_file import GgufError
    from .llama_runtime import RuntimeFault, RuntimeLimits
    from .service import EngineService, ServiceSettings

    settings = ServiceSettings(
        model_path=options.model_path,
        served_model_name=options.served_model_name or str(options.model_path),
        weight_version=options.weight_version,
        limits=RuntimeLimits(
            context_tokens=options.context_tokens,
            parallel_requests=options.parallel_requests,
            threads=options.threads,
            batch_tokens=options.batch_tokens,
        ),
        reuse_prefixes=not options.no_prefix_cache,
    )
    try:
        service = EngineService(settings)
    except (GgufError, RuntimeFault, OSError) as error:
        sys.exit(f"cannot serve {options.model_path}: {error}")
    uvicorn.run(
        build_app(service),
        host=options.host,
        port=options.port,
        log_level="warning",
        timeout_graceful_shutdown=2,
    )


def _limit_blas_threads(threads: int) -> None:
    """See that OpenBLAS runs with that many threads.

    A thread that spins for a core that others use costs more than it gives (14 tokens took 1 s with
    one thread and 14 s with two on a busy machine, measured). The number is read when NumPy is first
    imported, which this package's import may have done; so set it and start over, same process.
    """
    if os.environ.get("OPENBLAS_NUM_THREADS") != str(threads):
        os.environ["OPENBLAS_NUM_THREADS"] = str(threads)
        os.execv(sys.executable, sys.orig_argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rolecall_plugins.engines.embedded.server", description=__doc__)
    parser.add_argument("--model-path", type=Path, required=True, help="GGUF file, or a folder holding one")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", help="default: the model path")
    parser.add_argument("--weight-version", default="default")
    parser.add_argument("--context-tokens", type=int, default=2048, help="of one request, answer included")
    parser.add_argument("--parallel-requests", type=int, default=4, help="decoded at the same time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch-tokens", type=int, default=256, help="prompt tokens of one step")
    parser.add_argument("--no-prefix-cache", action="store_true", help="compute every prompt from its start")
    return parser


def _raise_file_limit() -> None:
    """Many callers may be connected at once; the soft limit is often 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
