#!/usr/bin/env python3
"""Enforces the arrows between the folders of src/ (docs/architecture.md), and what makes a header
compile on its own: it is read once, and the source file of its name includes it before all else.
The build thereby proves most headers; tests/lint/CMakeLists.txt compiles those without such a file.

usage: check_includes.py [SRC]      SRC is the folder to look at, default src/ of this repository
"""

import pathlib
import re
import sys

from lint_common import ROOT, finish

# folder: the folders it uses directly. What those use is included.
MAY_USE = {
    "base": [],
    "tensor": ["base"],
    "kernels": ["base", "tensor"],
    "model": ["kernels"],
    "text": ["base"],
    "image": ["base"],
    "kvcache": ["base"],
    "sched": ["base"],
    "engine": ["model", "text", "image", "kvcache", "sched"],
    "transfer": ["base"],
    "cluster": ["engine", "transfer", "kvcache", "sched"],
    "economics": ["base"],
    "sim": ["sched", "kvcache", "cluster", "economics"],
    "server": ["text", "image", "cluster", "economics"],
    "cli": ["sim", "server"],
}

SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def reachable(folder):
    """The folder itself and everything it may include."""
    seen, pending = set(), [folder]
    while pending:
        current = pending.pop()
        if current not in seen:
            seen.add(current)
            pending.extend(MAY_USE[current])
    return seen


def check_file(path, src, allowed):
    where = path.relative_to(src)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = INCLUDE.match(line)
        if not match:
            continue
        bracket, name = match.groups()
        target = name.split("/")[0]
        if bracket == "<":
            if (src / name).is_file():
                yield f'{where}:{number}: <{name}> is ours: use "{name}"'
        elif "/" not in name or not (src / name).is_file():
            yield f'{where}:{number}: "{name}" is not a path from src/ to an existing file'
        elif target not in allowed:
            yield f'{where}:{number}: {where.parts[0]}/ may not include {target}/ ("{name}")'


def check_own_header(path, src):
    """The source file beside a header of the same name must include it first."""
    header = path.with_suffix(".h")
    if path.suffix != ".cc" or not header.is_file():
        return
    own = str(header.relative_to(src))
    first = next(filter(None, map(INCLUDE.match, path.read_text(encoding="utf-8").splitlines())),
                 None)
    if first is None or first.group(2) != own:
        yield f'{path.relative_to(src)}: the first include must be "{own}"'


def check_read_once(path, src):
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix in (".h", ".cuh") and "#pragma once" not in lines:
        yield f"{path.relative_to(src)}: lacks #pragma once"


def main():
    src = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src"
    allowed = {folder: reachable(folder) for folder in MAY_USE}
    files = sorted(path for path in src.rglob("*") if path.suffix in SUFFIXES)
    problems = []
    for path in files:
        folder = path.relative_to(src).parts[0]
        if folder not in MAY_USE:
            problems.append(f"{path.relative_to(src)}: {folder} is not in the table of folders")
        else:
            problems.extend(check_file(path, src, allowed[folder]))
        problems.extend(check_own_header(path, src))
        problems.extend(check_read_once(path, src))
    finish("check_includes", len(files), problems)


if __name__ == "__main__":
    main()
