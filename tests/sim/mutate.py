"""Takes the product's guards away, one by one and in memory, and prints what notices each.

python3 tests/sim/mutate.py                 # by the seeds that are known to notice, then by others
python3 tests/sim/mutate.py --write         # and keep the seeds that were found
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import sys
import time

from mutation.hunt import SEEDS, Catch, hunt, known_seeds, tested
from mutation.mutant import Mutant
from mutation.mutants import MUTANTS


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if every bug was noticed, and 1 if one was not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=500, help="how many are tried for each (%(default)s)")
    parser.add_argument("--only", default="", help="guards with these words in them")
    parser.add_argument("--tests", action="store_true", help="only those that a named test notices")
    parser.add_argument("--write", action="store_true", help="keep the seeds that were found")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    chosen = [
        mutant
        for mutant in MUTANTS
        if options.only in mutant.guard and (mutant.other is not None or not options.tests)
    ]
    known = dict(known_seeds())
    missed = 0
    print(f"{'module':<15}{'guard that is taken away':<86}{'noticed by':<14}{'s':>6}  what broke")
    for mutant in chosen:
        began = time.process_time()
        catch = _catch(mutant, known, options.seeds)
        missed += catch is None
        if catch is not None and isinstance(catch.by, int):
            known[mutant.guard] = catch.by
        print(_line(mutant, catch, time.process_time() - began), flush=True)
    if options.write:
        simulated = [mutant.guard for mutant in MUTANTS if mutant.other is None]
        kept = {guard: known[guard] for guard in simulated if guard in known}
        SEEDS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(f"{len(chosen) - missed} of {len(chosen)} were noticed")
    return 1 if missed else 0


def _catch(mutant: Mutant, known: dict[str, int], seeds: int) -> Catch | None:
    if mutant.other is not None:
        return tested(mutant)
    first = [known[mutant.guard]] if mutant.guard in known else []
    return hunt(mutant, itertools.chain(first, range(seeds)))


def _line(mutant: Mutant, catch: Catch | None, seconds: float) -> str:
    if catch is None:
        return f"{mutant.part:<15}{mutant.guard:<86}{'NOTHING':<14}{seconds:>6.1f}"
    by = f"seed {catch.by}" if isinstance(catch.by, int) else "a test"
    found = catch.found if isinstance(catch.by, int) else f"{catch.by}: {catch.found}"
    return f"{mutant.part:<15}{mutant.guard:<86}{by:<14}{seconds:>6.1f}  {found:.150}"


if __name__ == "__main__":
    sys.exit(main())
