#!/usr/bin/env python3
"""Code names pages and sections of docs/: each must be there. In src/ and tests/ `name.md` is
docs/name.md (or a file of the tree, when written with its folder), and `name.md §4.1, §5-§7` are
numbered headings of that page, as in "## 4. Tests" and "### 4.1 Units".

usage: check_citations.py [ROOT]
"""

import bisect
import pathlib
import re
import sys

from lint_common import ROOT, finish, project_files

FOLDERS = ("src/", "tests/")
SUFFIXES = (".h", ".cc", ".in", ".py", ".txt")
# Prefixes of paths that are data or name pages that are not there on purpose.
SKIPPED = ("tests/data/", "tests/lint/checks_test.py")

SECTION = r"§\s?\d+(?:\.\d+)*(?:\s?[-–]\s?§?\d+(?:\.\d+)*)?"
CITATION = re.compile(rf"([\w./-]*\w\.md)\b((?:(?:,|;| and)?\s?{SECTION})*)")
NUMBER = re.compile(r"(\d+(?:\.\d+)*)(?:\s?[-–]\s?§?(\d+(?:\.\d+)*))?")
HEADING = re.compile(r"^#{2,}\s+(\d+(?:\.\d+)*)\.?\s", re.MULTILINE)
# A comment that goes on in the next line is one text.
LINE_JOINT = re.compile(r"[ \t]*\n[ \t]*(?://+|#+)?[ \t]*")


def joined_lines(text):
    """The text on one line, and the offset in it at which each line of the file begins."""
    parts, starts, length, position = [], [0], 0, 0
    for joint in LINE_JOINT.finditer(text):
        piece = text[position:joint.start()] + " "
        parts.append(piece)
        length += len(piece)
        starts.extend([length] * joint.group(0).count("\n"))
        position = joint.end()
    return "".join(parts) + text[position:], starts


def numbers_of(sections):
    """Section numbers of "§4.1, §5-§7": ["4.1", "5", "6", "7"]."""
    for first, last in NUMBER.findall(sections):
        if not last:
            yield first
            continue
        parent = first.rpartition(".")[0]
        if last.rpartition(".")[0] != parent:
            yield from (first, last)
            continue
        prefix = parent + "." if parent else ""
        for number in range(int(first.rpartition(".")[2]), int(last.rpartition(".")[2]) + 1):
            yield f"{prefix}{number}"


class Pages:
    def __init__(self, root):
        self.root = root
        self.headings = {}

    def path_of(self, name):
        return name if "/" in name else f"docs/{name}"

    def sections(self, path):
        """Numbers of the headings of a page, or None when it is not there."""
        if path not in self.headings:
            page = self.root / path
            self.headings[path] = (set(HEADING.findall(page.read_text(encoding="utf-8")))
                                   if page.is_file() else None)
        return self.headings[path]

    def faults(self, text):
        """(offset, what is wrong) of every citation that leads nowhere."""
        for citation in CITATION.finditer(text):
            path = self.path_of(citation.group(1))
            sections = self.sections(path)
            if sections is None:
                yield citation.start(), f"{path} is not there"
                continue
            for number in numbers_of(citation.group(2)):
                if number not in sections:
                    yield citation.start(), f"{path} has no section {number}"


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    files = [name for name in project_files(root)
             if name.startswith(FOLDERS) and name.endswith(SUFFIXES)
             and not name.startswith(SKIPPED)]
    pages = Pages(root)
    problems = []
    for name in files:
        text, starts = joined_lines((root / name).read_text(encoding="utf-8"))
        problems.extend(f"{name}:{bisect.bisect_right(starts, offset)}: {what}"
                        for offset, what in pages.faults(text))
    finish("check_citations", len(files), problems)


if __name__ == "__main__":
    main()
