#!/usr/bin/env python3
"""Time to the first token of a known prompt: computed, found in memory, found on disk after kill -9.

  benchmarks/kv_ttft.py build/release/src/cli/deepinfer [--replay exact] [--lengths 1024,4096,16384]

Serves the demo model with a longer context from a folder of its own. Prints one Markdown row per
length with medians in milliseconds, then the time from the start of the process to the first token
of a prompt on disk.
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


def long_model(folder, positions):
    """The demo model, allowed to read further than it was trained for: speed is all we ask."""
    folder.mkdir()
    for file in DEMO_MODEL.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file)
    config = json.loads((DEMO_MODEL / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = positions
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

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def prompt(length, seed):
    draw = random.Random(seed)
    return [draw.randrange(300, 8000) for _ in range(length)]


def median_ms(values):
    return f"{1000 * statistics.median(values):.1f}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--replay", default="exact")
    parser.add_argument("--lengths", default="1024,4096,16384")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    lengths = [int(n) for n in args.lengths.split(",")]
    positions = max(lengths) + 512
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model = long_model(folder / "model", positions)
        extra = ["--replay", args.replay, "--max-num-seqs", "2"]
        start = lambda: Server(args.binary, model, folder / "kv", positions, extra)
        prompts = {n: [prompt(n, 1000 * n + i) for i in range(args.repeats)] for n in lengths}
        without, cold, memory, disk = ({n: [] for n in lengths} for _ in range(4))
        server = Server(args.binary, model, "none", positions, extra)
        server.first_token_s(prompt(600, 1))  # first touch of weights and work space
        for n in lengths:
            without[n] = [server.first_token_s(ids)[0] for ids in prompts[n]]
        server.kill()
        server = start()
        server.first_token_s(prompt(600, 1))
        for n in lengths:
            for ids in prompts[n]:
                seconds, dram, stored = server.first_token_s(ids)
                assert dram == stored == 0
                cold[n].append(seconds)
                seconds, dram, stored = server.first_token_s(ids)
                assert dram > 0 and stored == 0, (dram, stored)
                memory[n].append(seconds)
        wanted = sum(n // BLOCK for n in lengths) * args.repeats
        while server.blocks() < wanted:
            time.sleep(0.1)
        server.kill()
        server = start()
        first_hit = None
        for n in lengths:
            for ids in prompts[n]:
                seconds, dram, stored = server.first_token_s(ids)
                first_hit = first_hit or time.monotonic() - server.started
                assert stored > 0 and dram == 0, (dram, stored)
                disk[n].append(seconds)
        server.kill()
        print("| prompt tokens | computed, no store | computed and stored | in memory "
              "| on disk after kill -9 |")
        print("|---|---|---|---|---|")
        for n in lengths:
            columns = (without[n], cold[n], memory[n], disk[n])
            print(f"| {n:,} | " + " | ".join(median_ms(values) for values in columns) + " |")
        print(f"start to ready {1000 * server.ready_s:.0f} ms, to the first token of a prompt of "
              f"{lengths[0]:,} tokens on disk {1000 * first_hit:.0f} ms")


if __name__ == "__main__":
    main()
