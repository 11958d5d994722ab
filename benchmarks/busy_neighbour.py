#!/usr/bin/env python3
"""What is left of the speed when other programs take the cores: ours beside 0, 1 and 2 busy loops.

  busy_neighbour.py BINARY MODEL [--threads 2] [--rounds 5]

A round measures every number of loops once. `received` is the CPU time our process got of the time
its threads asked for; speed must not fall below that share. Throughput over the whole run is
counted, so that a stall shows. With --real-time ours and the loops run under `chrt -r 1`, in turns
with each other and apart from whatever else the machine does.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

BUSY_LOOP = "while True: pass"


def measure(arguments, num_loops):
    """(tokens per second, CPU seconds received per second and thread) of one run."""
    turns = ["chrt", "-r", "1"] if arguments.real_time else []
    loops = [subprocess.Popen([*turns, sys.executable, "-c", BUSY_LOOP])
             for _ in range(num_loops)]
    try:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            subprocess.run([*turns, arguments.binary, "bench", "model", arguments.model,
                            "--prompts", "0", "--batches", str(arguments.batch), "--contexts", "512",
                            "--steps", str(arguments.steps), "--rounds", "1",
                            "--threads", str(arguments.threads), "--json", file.name,
                            *arguments.options], check=True, stdout=subprocess.DEVNULL)
            rows = json.loads(pathlib.Path(file.name).read_text())["rows"]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    decode = next(row for row in rows if row["name"].startswith("decode"))
    return decode["median"], decode["facts"]["cpu share"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loops", default="0,1,2")
    parser.add_argument("--real-time", action="store_true")
    arguments, arguments.options = parser.parse_known_args()
    samples = {int(n): [] for n in arguments.loops.split(",")}
    for _ in range(arguments.rounds):
        for num_loops, values in samples.items():
            values.append(measure(arguments, num_loops))
    alone = statistics.median(speed for speed, _ in samples[min(samples)])
    for num_loops, values in samples.items():
        speeds = [speed for speed, _ in values]
        print("%d busy loops: %.1f tok/s (%.1f to %.1f), %.2f of %d loops; received %.2f" %
              (num_loops, statistics.median(speeds), min(speeds), max(speeds),
               statistics.median(speeds) / alone, min(samples),
               statistics.median(share for _, share in values)))


if __name__ == "__main__":
    main()
