#!/usr/bin/env python3
"""Time to the first token of a known prompt: computed, found in memory, found on disk after kill -9.

  benchmarks/kv_ttft.py build/release/src/cli/deepinfer [--model DIR] [--replay exact]
                        [--lengths 1024,4096,16384] [--repeats 3] [--only-stored]

Serves the demo model, or another one, with a longer context from a folder of its own. Computed
prompts, with and without a store, and those in memory take turns. Prints one Markdown row per length
with medians in milliseconds and ratios to the computed one, then what a start after kill -9 takes.
With --only-stored nothing is computed a second time without a store, and ratios are to what was
computed and stored.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEMO_MODEL = ROOT / "models/deepinfer-tiny"
BLOCK = 128


def long_model(source, folder, positions):
    """The model, allowed to read further than it was trained for: speed is all we ask."""
    folder.mkdir()
    for file in source.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file.resolve())
    config = json.loads((source / "config.json").read_text())
    text = config.get("text_config", config)
    text["max_position_embeddings"] = max(positions, text["max_position_embeddings"])
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Server:
    def __init__(self, binary, model, kv_dir, positions, extra):
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [binary, "serve", str(model), "--port", "0", "--log-format", "json", "--kv-dir",
             str(kv_dir), "--kv-group-commit-ms", "50", "--max-model-len", str(positions),
             "--served-model-name", "bench", *extra],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.port = None
        for line in self.process.stderr:
            event = json.loads(line) if line.startswith("{") else {}
            self.port = event.get("port", self.port)
            if event.get("event") == "server.ready":
                break
        self.ready_s = time.monotonic() - self.started
        subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=subprocess.DEVNULL)

    def first_token_s(self, ids):
        """Seconds to the first token, and the tokens that came from memory and disk."""
        body = json.dumps({"model": "bench", "prompt": ids, "max_tokens": 1, "temperature": 0,
                           "ignore_eos": True, "stream": True,
                           "stream_options": {"include_usage": True}})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        begin = time.monotonic()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        first, usage = None, None
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            first = first or time.monotonic() - begin
            usage = json.loads(line[6:]).get("usage") or usage
        connection.close()
        tiers = usage["deepinfer"]["cached_by_tier"]
        return first, tiers["dram"], tiers["disk"]

    def blocks(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines
                   if line.startswith("deepinfer:kv_index_entries"))

    def wait_blocks(self, wanted):
        """Seconds since the start when the store knows of so many blocks."""
        while self.blocks() < wanted:
            time.sleep(0.002)
        return time.monotonic() - self.started

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def prompt(length, seed):
    draw = random.Random(seed)
    return [draw.randrange(300, 8000) for _ in range(length)]


def median_ms(values):
    return 1000 * statistics.median(values)


def row(n, without, cold, memory, disk):
    base = median_ms(without or cold)
    cells = [f"{base:.0f}" if without else "-"]
    cells += [f"{median_ms(v):.0f} ({median_ms(v) / base:.3f})" for v in (cold, memory, disk)]
    return f"| {n:,} | " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--model", type=pathlib.Path, default=DEMO_MODEL)
    parser.add_argument("--replay", default="exact")
    parser.add_argument("--lengths", default="1024,4096,16384")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only-stored", action="store_true")
    args = parser.parse_args()
    lengths = [int(n) for n in args.lengths.split(",")]
    positions = max(lengths) + 512
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model = long_model(args.model, folder / "model", positions)
        extra = ["--replay", args.replay, "--max-num-seqs", "2"]
        prompts = {n: [prompt(n, 1000 * n + i) for i in range(args.repeats)] for n in lengths}
        without, cold, memory, disk = ({n: [] for n in lengths} for _ in range(4))
        bare = [] if args.only_stored else [Server(args.binary, model, "none", positions, extra)]
        server = Server(args.binary, model, folder / "kv", positions, extra)
        for each in (*bare, server):
            each.first_token_s(prompt(600, 1))  # first touch of weights and work space
        for i in range(args.repeats):
            for n in lengths:
                without[n] += [each.first_token_s(prompts[n][i])[0] for each in bare]
                seconds, dram, stored = server.first_token_s(prompts[n][i])
                assert dram == stored == 0
                cold[n].append(seconds)
                seconds, dram, stored = server.first_token_s(prompts[n][i])
                assert dram > 0 and stored == 0, (dram, stored)
                memory[n].append(seconds)
        wanted = sum(n // BLOCK for n in lengths) * args.repeats
        server.wait_blocks(wanted)
        for each in (*bare, server):
            each.kill()
        server = Server(args.binary, model, folder / "kv", positions, extra)
        index_s = server.wait_blocks(wanted)
        for i in range(args.repeats):
            for n in lengths:
                seconds, dram, stored = server.first_token_s(prompts[n][i])
                assert stored > 0 and dram == 0, (dram, stored)
                disk[n].append(seconds)
        server.kill()
        print("| prompt tokens | computed, no store | computed and stored | in memory "
              "| on disk after kill -9 |")
        print("|---|---|---|---|---|")
        for n in lengths:
            print(row(n, without[n], cold[n], memory[n], disk[n]))
        print(f"start to ready {1000 * server.ready_s:.0f} ms, to an index of all {wanted} blocks "
              f"{1000 * index_s:.0f} ms, first hit ({lengths[0]:,} tokens) "
              f"{1000 * disk[lengths[0]][0]:.0f} ms after its request")


if __name__ == "__main__":
    main()
