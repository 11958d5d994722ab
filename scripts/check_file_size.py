#!/usr/bin/env python3
"""Source files aim at 300 lines (a note above that) and end at 800 (an error above that).

usage: check_file_size.py [ROOT]
"""

import pathlib
import sys

from lint_common import ROOT, finish, project_files

AIM_LINES = 300
CAP_LINES = 800
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".py", ".js", ".css", ".html", ".cmake"}
FOLDERS = {"src", "include", "tests", "benchmarks", "scripts", "tools", "cmake", "web", "python"}

# path: why it may be longer than the cap.
EXCEPTIONS = {}


def is_source(name):
    path = pathlib.PurePath(name)
    in_scripts = path.parts[0] == "scripts"
    return path.parts[0] in FOLDERS and (path.suffix in SUFFIXES or in_scripts)


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    files = [name for name in project_files(root) if is_source(name)]
    problems = []
    long_files = []
    for name in files:
        num_lines = len((root / name).read_bytes().splitlines())
        if num_lines > CAP_LINES and name not in EXCEPTIONS:
            problems.append(f"{name}: {num_lines} lines, the cap is {CAP_LINES}: split it")
        elif num_lines <= CAP_LINES and name in EXCEPTIONS:
            problems.append(f"{name}: no longer needs its exception")
        elif num_lines > AIM_LINES:
            long_files.append(f"  {num_lines:4d} {name}")
    problems.extend(f"{name}: listed as an exception but not there"
                    for name in EXCEPTIONS if root == ROOT and name not in files)
    if long_files:
        print(f"note: over {AIM_LINES} lines\n" + "\n".join(sorted(long_files, reverse=True)))
    finish("check_file_size", len(files), problems)


if __name__ == "__main__":
    main()
