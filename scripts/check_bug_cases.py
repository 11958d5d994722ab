#!/usr/bin/env python3
"""Holds docs/bug_cases.md to the tests: every row is there once and has a test that is named after
it, every test it names exists, and every test that is named after a row is in it.

usage: check_bug_cases.py [ROOT]
"""

import pathlib
import re
import sys

from lint_common import ROOT, finish

ROWS = {"A": 12, "B": 24, "C": 6, "D": 8, "E": 11, "F": 10, "G": 5, "H": 3, "I": 4, "J": 7,
        "K": 7, "L": 2}
PLANTED = "checks_test.py"  # plants faults to see them found
ROW = re.compile(r"\| ([A-L])-(\d\d) \| [^|]+ \| (.+) \|")
TEST_NAME = re.compile(r"\b(?:test_)?(?:[A-L]\d\d_)+\w+")


def tests_of(root):
    """All text of the tests, and the names in it that begin with a row."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((root / "tests").rglob("*"))
                     if path.suffix in (".cc", ".py") and path.name != PLANTED)
    return text, set(TEST_NAME.findall(text))


def problems_of(root):
    text, named = tests_of(root)
    words = set(re.findall(r"\w+", text))
    seen, listed = [], set()
    for line in (root / "docs/bug_cases.md").read_text(encoding="utf-8").splitlines():
        match = ROW.fullmatch(line)
        if not match:
            continue
        row = match.group(1) + match.group(2)
        seen.append(row)
        tests = re.findall(r"`(\w+)`", match.group(3))
        if not any(re.match(rf"(?:test_)?(?:[A-L]\d\d_)*{row}_", test) for test in tests):
            yield f"docs/bug_cases.md: {row} names no test that is named after it"
        for test in tests:
            listed.add(test)
            if test not in words:
                yield f"docs/bug_cases.md: {row} names {test}, which no file of tests/ has"
    wanted = [f"{letter}{number:02}" for letter, count in ROWS.items()
              for number in range(1, count + 1)]
    if seen != wanted:
        yield f"docs/bug_cases.md: rows differ from the list: {sorted(set(seen) ^ set(wanted))}"
    for name in sorted(named - listed):
        yield f"tests/: {name} is in no row of docs/bug_cases.md"


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    finish("check_bug_cases", 1, list(problems_of(root)))


if __name__ == "__main__":
    main()
