"""Add up the JUnit files of a CI run and print one line: how many tests passed and failed."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree


def main() -> None:
    total: Counter[str] = Counter()
    for file in Path(sys.argv[1]).glob("*.xml"):
        for suite in ElementTree.parse(file).iter("testsuite"):
            for key in ("tests", "failures", "errors", "skipped"):
                total[key] += int(suite.get(key, "0"))
    failed = total["failures"] + total["errors"]
    passed = total["tests"] - failed - total["skipped"]
    print(f"{passed} passed, {failed} failed, {total['skipped']} skipped")
    if passed == 0:
        sys.exit("no test ran")


if __name__ == "__main__":
    main()
