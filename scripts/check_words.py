#!/usr/bin/env python3
"""Finds text that does not belong in the repository: paths of one machine, promises for later,
talk about how the text was made, hosts of package registries (packages are named, not addressed).

usage: check_words.py [ROOT]
"""

import pathlib
import re
import sys

from lint_common import ROOT, finish, project_files

FORBIDDEN = [
    ("path of one machine", r"(?<![\w./-])/(?:work|root|home|Users)/[\w.]"),
    ("promise for later", r"\b(?:TODO|FIXME|XXX|HACK)\b"),
    ("number of an issue", r"(?i)\b(?:issue|ticket|pull request)\s*#\s*\d+"),
    ("talk about the making", r"(?i)\b(?:as an ai\b|ai assistant|coding assistant|language model "
                              r"wrote|co-authored-by|generated (?:by|with) (?:an? )?(?:ai|llm|"
                              r"assistant|model)\b|this session|previous session|helper session|"
                              r"as (?:you asked|instructed)\b)"),
    ("host of a registry", r"(?i)\b(?:pypi\.org|pythonhosted\.org|deb\.debian\.org|npmjs\.org|"
                           r"docker\.io|ghcr\.io|quay\.io|proxy\.golang\.org|crates\.io)\b"),
]
PATTERNS = [(what, re.compile(pattern)) for what, pattern in FORBIDDEN]

# Prefixes of paths that are data or quote the words on purpose.
SKIPPED = {
    "scripts/check_words.py": "holds the list",
    "tests/lint/checks_test.py": "plants them to see them found",
    "tests/data/": "recorded inputs and outputs",
    "models/": "weights, vocabularies and sample prompts",
}


def check_text(name, text):
    for number, line in enumerate(text.splitlines(), start=1):
        for what, pattern in PATTERNS:
            match = pattern.search(line)
            if match:
                yield f"{name}:{number}: {what}: {match.group(0)!r}"


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    skipped = tuple(SKIPPED) if root == ROOT else ()
    files = [name for name in project_files(root) if not name.startswith(skipped)]
    problems = []
    for name in files:
        try:
            text = (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # binary
        problems.extend(check_text(name, text))
    finish("check_words", len(files), problems)


if __name__ == "__main__":
    main()
