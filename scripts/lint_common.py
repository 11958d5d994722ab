"""Shared by the check_*.py scripts: which files belong to the project, and how to report."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNTRACKED_FOLDERS = {".git", ".venv", ".cache", "build", "__pycache__"}


def project_files(root=ROOT):
    """Paths relative to root: what git tracks or would add; without git, all but build output."""
    listing = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True)
    if listing.returncode == 0:
        names = [name for name in listing.stdout.decode().split("\0") if name]
    else:
        names = [str(path.relative_to(root)) for path in root.rglob("*")
                 if not UNTRACKED_FOLDERS.intersection(path.relative_to(root).parts)]
    return sorted({name for name in names if (root / name).is_file()})


def finish(check, num_files, problems):
    """Prints the problems and exits 1, or one line that says what was looked at."""
    if problems:
        print("\n".join(problems), file=sys.stderr)
        sys.exit(f"{check}: {len(problems)} problem(s)")
    if num_files == 0:
        sys.exit(f"{check}: found no files to look at")
    print(f"{check}: {num_files} files are fine")


def git(*arguments):
    """Output of a git command in the repository, or None when it fails."""
    run = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return run.stdout.strip() if run.returncode == 0 else None


def base_commit():
    """Where this line of work left the main branch; on the main branch itself the commit before
    the last. None without git or in a clone of one commit."""
    head = git("rev-parse", "HEAD")
    for branch in ("origin/HEAD", "origin/main", "main"):
        base = git("merge-base", branch, "HEAD")
        if base and base != head:
            return base
    return git("rev-parse", "--verify", "--quiet", "HEAD~1")


def changed_files(base):
    """Existing files that differ from the base commit, committed or not."""
    names = (git("diff", "--name-only", "--no-renames", base) or "").splitlines()
    names += (git("ls-files", "--others", "--exclude-standard") or "").splitlines()
    return sorted({name for name in names if (ROOT / name).is_file()})
