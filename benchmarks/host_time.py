#!/usr/bin/env python3
"""CPU time of a serving process per engine step, by kind of thread: what scheduling, sampling and the
server cost beside the model.

    benchmarks/host_time.py BINARY [MODEL] [--streams 8] [--tokens 400] [--rounds 3] [--threads 2]

Streams of chat answers of fixed length run together. CPU time is that of /proc/PID/task/*/schedstat,
so other work on the machine does not count. The model runs on `step` and `compute`, whose other work
(sampling, and the polling of idle compute threads) is counted by `bench engine`."""

import argparse
import http.client
import json
import pathlib
import re
import statistics
import subprocess
import threading

MODEL_THREADS = ("step", "compute")


def start_server(options):
    command = [options.binary, "serve", options.model, "--port", "0", "--log-format", "json",
               "--threads", str(options.threads), "--spec", "off", "--prefix-cache", "off",
               "--kv-dir", "none", "--log-requests", "off", "--max-num-seqs", str(options.streams)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    port = None
    for line in process.stderr:
        event = json.loads(line) if line.startswith("{") else {}
        port = event.get("port", port)
        if event.get("event") == "server.ready":
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, port
    raise SystemExit("the server does not start: %s" % " ".join(command))


def cpu_us(pid):
    """CPU time so far in microseconds by name of the thread."""
    times = {}
    for task in pathlib.Path("/proc/%d/task" % pid).iterdir():
        name = (task / "comm").read_text().strip()
        nanoseconds = int((task / "schedstat").read_text().split()[0])
        times[name] = times.get(name, 0) + nanoseconds / 1e3
    return times


def steps(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return sum(float(v) for v in re.findall(r"^deepinfer:engine_steps_total\S* (\S+)$", text, re.M))


def stream(port, number, tokens):
    body = {"model": "deepinfer-tiny", "stream": True, "max_tokens": tokens, "ignore_eos": True,
            "temperature": 0, "thinking": {"type": "disabled"},
            "messages": [{"role": "user", "content": "Count to %d." % (100 + number)}]}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/chat/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(response.read().decode())
    while response.read1(65536):
        pass
    connection.close()


def measure(process, port, options):
    """Microseconds a step by name of the thread."""
    before, steps_before = cpu_us(process.pid), steps(port)
    clients = [threading.Thread(target=stream, args=(port, i, options.tokens))
               for i in range(options.streams)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    after, num_steps = cpu_us(process.pid), steps(port) - steps_before
    return {name: (us - before.get(name, 0)) / num_steps for name, us in after.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parents[1]
    parser.add_argument("binary")
    parser.add_argument("model", nargs="?", default=str(root / "models/deepinfer-tiny"))
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    process, port = start_server(options)
    try:
        measure(process, port, argparse.Namespace(**{**vars(options), "tokens": 20}))
        rounds = [measure(process, port, options) for _ in range(options.rounds)]
    finally:
        process.terminate()
        process.wait(timeout=60)
    names = sorted({name for one in rounds for name in one})
    print("| thread | us of CPU per step, median (lowest to highest) |\n|---|---|")
    for name in names:
        values = [one.get(name, 0) for one in rounds]
        if max(values) < 0.05:
            continue
        print("| %s | %.1f (%.1f to %.1f) |" % (name, statistics.median(values), min(values),
                                                max(values)))
    model = [sum(one.get(n, 0) for n in MODEL_THREADS) for one in rounds]
    rest = [sum(us for n, us in one.items() if n not in MODEL_THREADS) for one in rounds]
    print("| all but %s | %.1f: %.1f %% of theirs |" % (
        " and ".join(MODEL_THREADS), statistics.median(rest),
        100 * statistics.median(r / m for r, m in zip(rest, model))))


if __name__ == "__main__":
    main()
