"""SGLang's own load client, ``sglang.bench_serving``, several times in one process: imports take longest.

    python bench_client.py ARGUMENTS...

Each argument is a JSON list: one command line. Run by the tests with the interpreter that has SGLang.
"""

from __future__ import annotations

import json
import sys

from sglang.benchmark.serving import cli_main

for line in sys.argv[1:]:
    sys.argv = ["bench_serving", *json.loads(line)]
    cli_main()
