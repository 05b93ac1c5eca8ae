"""The router's process: its own command line, and one thing that must not stand there.

Run by path, as a child of the role's service. The key that guards the router's control calls comes
in the environment, since command lines are for everybody on the machine to read.
"""

from __future__ import annotations

import os
import sys

KEY_VARIABLE = "ROLECALL_ROUTER_KEY"


def main() -> None:
    from sglang_router.launch_router import parse_router_args
    from sglang_router.router import Router

    arguments = parse_router_args(sys.argv[1:])
    arguments.control_plane_api_keys = [("rolecall", "rolecall", os.environ.pop(KEY_VARIABLE), "admin")]
    Router.from_args(arguments).start()


if __name__ == "__main__":
    main()
