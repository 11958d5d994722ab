#!/usr/bin/env python3
"""Measures ours and other systems in turns on one machine: A B A B, median, spread and ratio.

  compare.py CHECKPOINT --peers llama_cpp,fastllm --gguf v4mid.gguf --threads 1,2 --rounds 3

CHECKPOINT comes from tools/make_bench_model.py; the GGUF file of the same dimensions from
make_v4_gguf.py; the peers from benchmarks/peers/setup. A round runs every system once on every
number of threads: prefill of --prompt random tokens, then --gen greedy tokens in batches. With
--real-time the measured processes run under `chrt -r 1`, which keeps other work off their cores.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
PEERS = ROOT / "build/peers"
TIMEOUT_S = 3600


class Bench:
    def __init__(self, arguments):
        self.a = arguments
        # In turns: under -f a peer whose threads spin would starve its own reader of tokens.
        self.prefix = ["chrt", "-r", "1"] if arguments.real_time else []
        self.batches = [int(b) for b in arguments.batches.split(",")]

    def output(self, command, **environment):
        run = subprocess.run([*self.prefix, *map(str, command)], capture_output=True, text=True,
                             timeout=TIMEOUT_S, env=dict(os.environ, **environment))
        if run.returncode != 0:
            sys.exit("%s failed:\n%s" % (command[0], run.stderr[-2000:]))
        return run.stdout

    # Every system: {row: tokens per second} of one round.

    def ours(self, threads):
        text = self.output([self.a.binary, "bench", "model", self.a.checkpoint, "--json", "-",
                            "--rounds", 1, "--threads", threads, "--prompts", self.a.prompt,
                            "--batches", self.a.batches, "--contexts", self.a.decode_prompt,
                            "--steps", self.a.gen, "--numerics", self.a.numerics])
        rows = {}
        for row in json.loads(text)["rows"]:
            words = row["name"].split()
            if words[0] == "prefill":
                rows["prefill"] = row["median"]
            elif words[0] == "decode":
                rows["decode batch %s" % words[2]] = row["median"]
        return rows

    def llama_cpp(self, threads):
        common = ["-m", self.a.gguf, "-t", threads]
        rows = {}
        text = self.output([PEERS / "llama_cpp/bin/llama-bench", *common, "-p", self.a.prompt,
                            "-n", 0, "-r", 1, "-o", "json"])
        for test in json.loads(text):
            rows["prefill"] = test["avg_ts"]
        cells = max(self.batches) * (self.a.decode_prompt + self.a.gen)
        text = self.output([PEERS / "llama_cpp/bin/llama-batched-bench", *common, "-tb", threads,
                            "-c", cells, "-npp", self.a.decode_prompt, "-ntg", self.a.gen,
                            "-npl", self.a.batches, "--output-format", "jsonl"])
        for line in text.splitlines():
            if line.startswith("{"):
                test = json.loads(line)
                rows["decode batch %d" % test["pl"]] = test["speed_tg"]
        return rows

    def fastllm(self, threads):
        # Its own choice of devices registers experts for NUMA, which refuses blocks of 32 rows.
        model = ["-p", self.a.checkpoint, "--device", "cpu", "--moe_device", "cpu"]
        return self.script("fastllm", "run_fastllm.py", model, threads)

    def transformers(self, threads):
        return self.script("transformers", "run_transformers.py", [self.a.checkpoint], threads)

    def script(self, environment, name, model, threads):
        text = self.output([PEERS / environment / "bin/python3", HERE / name, *model,
                            "--threads", threads, "--prompt-tokens", self.a.prompt,
                            "--gen-tokens", self.a.gen, "--batches", self.a.batches],
                           OMP_NUM_THREADS=str(threads))
        rows = [json.loads(line) for line in text.splitlines() if line.startswith('{"row"')]
        return {row["row"]: row["value"] for row in rows}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--binary", default=ROOT / "build/release/src/cli/deepinfer")
    parser.add_argument("--peers", default="llama_cpp", help="of llama_cpp,fastllm,transformers")
    parser.add_argument("--gguf", help="the model of llama_cpp")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the measured prefill")
    parser.add_argument("--decode-prompt", type=int, default=32,
                        help="tokens before the decode of llama_cpp")
    parser.add_argument("--gen", type=int, default=64, help="tokens of a request")
    parser.add_argument("--batches", default="1,4,8")
    parser.add_argument("--numerics", default="prod")
    parser.add_argument("--real-time", action="store_true")
    parser.add_argument("--json", help="also write all samples to this file")
    return parser.parse_args()


def measure(arguments):
    """{(row, threads): {system: [samples]}} and the load average before every run."""
    bench, samples, loads = Bench(arguments), {}, []
    systems = ["ours", *arguments.peers.split(",")]
    for round_number in range(arguments.rounds):
        for threads in arguments.threads.split(","):
            for system in systems:
                loads.append(os.getloadavg()[0])
                for row, value in getattr(bench, system)(int(threads)).items():
                    samples.setdefault((row, threads), {}).setdefault(system, []).append(value)
                print("round %d: %s on %s threads" % (round_number + 1, system, threads),
                      file=sys.stderr, flush=True)
    return samples, loads


def cpu_model():
    for line in open("/proc/cpuinfo", encoding="utf-8"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "?"


def print_table(arguments, samples, loads):
    print("%s; load average %.1f to %.1f; priority %s; %d rounds; median (lowest to highest) tok/s" %
          (cpu_model(), min(loads), max(loads), "real-time" if arguments.real_time else "plain",
           arguments.rounds))
    for (row, threads), of_system in sorted(samples.items()):
        ours = statistics.median(of_system["ours"]) if "ours" in of_system else None
        for system, values in of_system.items():
            median = statistics.median(values)
            ratio = "" if ours is None else "ours / it %.2f" % (ours / median)
            print("%-16s %s threads  %-12s %8.1f (%.1f to %.1f)  %s" %
                  (row, threads, system, median, min(values), max(values), ratio))


def main():
    arguments = parse_arguments()
    samples, loads = measure(arguments)
    print_table(arguments, samples, loads)
    if arguments.json:
        rows = [{"row": row, "threads": int(threads), "system": system, "samples": values}
                for (row, threads), of_system in samples.items()
                for system, values in of_system.items()]
        pathlib.Path(arguments.json).write_text(json.dumps(
            {"cpu": cpu_model(), "load": loads, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
