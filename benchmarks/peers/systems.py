"""How ours and each peer is prepared and measured. Used by benchmarks/peers/run.

Every system has prepare(), which may take minutes, and measure(threads), which returns one round as
{row: tokens per second} with the rows "prefill" and "decode N".
"""

import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
INSTALLED = CACHE / "deepinfer/peers"
MODELS = INSTALLED / "models"
TIMEOUT_S = 3600
TOOLS_PYTHON = INSTALLED / "tools/bin/python3"  # has numpy


class Failed(Exception):
    """What could not be done; the message is for the user."""


def run(command, shown=False, **environment):
    """Standard output of a command."""
    command = [str(part) for part in command]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE,
                              stderr=None if shown else subprocess.PIPE, text=True,
                              timeout=TIMEOUT_S, env=dict(os.environ, **environment))
    except FileNotFoundError as error:
        raise Failed("cannot start %s: %s" % (command[0], error)) from error
    except subprocess.TimeoutExpired as error:
        raise Failed("no end after %d s: %s" % (TIMEOUT_S, " ".join(command))) from error
    if done.returncode != 0:
        last = "" if shown else ":\n" + "\n".join((done.stderr or "").splitlines()[-12:])
        raise Failed("exit status %d of %s%s" % (done.returncode, " ".join(command), last))
    return done.stdout


def made_once(path, make):
    """The path, after make(unfinished) wrote it if it was missing."""
    if not path.exists():
        MODELS.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name("unfinished-" + path.name)
        print("benchmarks/peers/run: writing %s" % path, file=sys.stderr, flush=True)
        make(unfinished)
        unfinished.rename(path)
    return path


def checkpoint(preset):
    """Folder of the synthetic checkpoint that ours and fastllm read."""
    run([HERE / "setup", "tools"], shown=True)
    return made_once(MODELS / preset, lambda path: run(
        [TOOLS_PYTHON, ROOT / "tools/make_bench_model.py", path, "--preset", preset]))


class System:
    name = ""

    def __init__(self, arguments):
        self.a = arguments
        self.batches = [batch for batch in arguments.batches if batch > 0]

    def measured(self, command, **environment):
        return run([*self.a.prefix, *command], **environment)

    def list_of_batches(self):
        return ",".join(map(str, self.batches)) or "0"


class Ours(System):
    name = "ours"

    def prepare(self):
        self.model = checkpoint(self.a.preset)
        self.binary = self.a.binary
        if self.binary is None:
            run([ROOT / "scripts/build", "release", "deepinfer"], shown=True)
            self.binary = ROOT / "build/release/src/cli/deepinfer"
        self.version = ", ".join(run([self.binary, "version"]).splitlines()[:3])

    def measure(self, threads):
        text = self.measured([self.binary, "bench", "model", self.model, "--json", "-",
                              "--rounds", 1, "--thread-counts", threads,
                              "--prompts", self.a.prompt, "--batches", self.list_of_batches(),
                              "--contexts", self.a.decode_prompt, "--steps", self.a.gen,
                              "--numerics", self.a.numerics])
        rows = {}
        for row in json.loads(text)["rows"]:
            words = row["name"].split()
            if words[0] == "prefill":
                rows["prefill"] = row["median"]
            elif words[0] == "decode":
                rows["decode %s" % words[2]] = row["median"]
        return rows


class Peer(System):
    """Driven by the script run_<name>.py beside this file, in its own virtual environment."""
    environment = {}

    def prepare(self):
        run([HERE / "setup", self.name], shown=True)
        self.model = checkpoint(self.a.preset)

    def arguments_of_model(self):
        return [self.model]

    def measure(self, threads):
        text = self.measured([INSTALLED / self.name / "bin/python3",
                              HERE / ("run_%s.py" % self.name), *self.arguments_of_model(),
                              "--threads", threads, "--prompt-tokens", self.a.prompt,
                              "--decode-prompt-tokens", self.a.decode_prompt,
                              "--gen-tokens", self.a.gen, "--batches", self.list_of_batches()],
                             OMP_NUM_THREADS=str(threads), **self.environment)
        rows = [json.loads(line) for line in text.splitlines() if line.startswith('{"row"')]
        return {row["row"]: row["value"] for row in rows}


class LlamaCpp(Peer):
    """Runs V4: it does not know V4.1."""
    name = "llamacpp"
    source = INSTALLED / "llamacpp_source"
    environment = {"PYTHONPATH": str(source)}

    def prepare(self):
        run([HERE / "setup", self.name], shown=True)
        self.model = made_once(MODELS / (self.a.preset + "-v4.gguf"), lambda path: run(
            [INSTALLED / self.name / "bin/python3", HERE / "make_v4_gguf.py", path,
             "--preset", self.a.preset],
            PYTHONPATH=str(self.source / "vendor/llama.cpp/gguf-py")))


class Fastllm(Peer):
    """The one peer that reads the same V4.1 checkpoint."""
    name = "fastllm"

    def arguments_of_model(self):
        # Its own choice of devices registers experts for NUMA, which refuses blocks of 32 rows.
        return ["-p", self.model, "--device", "cpu", "--moe_device", "cpu"]


class Transformers(Peer):
    """Runs V4 in bf16: it does not know V4.1."""
    name = "transformers"


PEERS = {system.name: system for system in (LlamaCpp, Transformers, Fastllm)}
