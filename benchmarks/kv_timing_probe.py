#!/usr/bin/env python3
"""Can one tenant tell from response times what another one has asked?

  benchmarks/kv_timing_probe.py build/release/src/cli/deepinfer [--prompts 100] [--tokens 512]

Tenant A sends prompts; tenant B then sends those and as many of its own, in random order, and notes
the time to the first token. Prints the share of pairs (one known to A, one not) in which the known one
was faster: 0.5 means that times tell nothing, 1 that they tell everything. A control follows: B asks for
prompts that B itself has sent before.
"""

import argparse
import http.client
import json
import pathlib
import random
import tempfile
import time

from kv_ttft import DEMO_MODEL, Server, prompt

MAX_LEN = 2048


def first_token_s(server, key, ids):
    """Seconds to the first token, and the tokens that came from a cache."""
    body = json.dumps({"model": "bench", "prompt": ids, "max_tokens": 1, "temperature": 0,
                       "ignore_eos": True, "stream": True,
                       "stream_options": {"include_usage": True}})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    begin = time.monotonic()
    connection.request("POST", "/v1/completions", body,
                       {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
    first, usage = None, None
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        first = first or time.monotonic() - begin
        usage = json.loads(line[6:]).get("usage") or usage
    connection.close()
    return first, usage["deepinfer"]["cached_tokens"]


def faster_share(known, fresh):
    wins = sum((a < b) + 0.5 * (a == b) for a in known for b in fresh)
    return wins / (len(known) * len(fresh))


def probe(server, key, known, fresh):
    """Share of pairs in which a known prompt was faster, and its cached tokens."""
    order = [(ids, True) for ids in known] + [(ids, False) for ids in fresh]
    random.Random(1).shuffle(order)
    times = {True: [], False: []}
    hits = 0
    for ids, is_known in order:
        seconds, cached = first_token_s(server, key, ids)
        times[is_known].append(seconds)
        hits += cached if is_known else 0
    return faster_share(times[True], times[False]), hits


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=512)
    args = parser.parse_args()

    def prompts(seed):
        return [prompt(args.tokens, 10_000 * seed + i) for i in range(args.prompts)]

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        keys = folder / "keys"
        keys.write_text(json.dumps({"keys": [{"name": name, "key": "key-" + name}
                                             for name in "ab"]}))
        server = Server(args.binary, DEMO_MODEL, folder / "kv", MAX_LEN,
                        ["--max-num-seqs", "2", "--api-key-file", str(keys)])
        try:
            for key in ("key-a", "key-b"):
                first_token_s(server, key, prompt(args.tokens, 1))
            asked = prompts(1)
            for ids in asked:
                first_token_s(server, "key-a", ids)
            share, hits = probe(server, "key-b", asked, prompts(2))
            print(f"another tenant's prompts: {share:.3f}, {hits} cached tokens")
            share, hits = probe(server, "key-b", prompts(2), prompts(3))
            print(f"own prompts: {share:.3f}, {hits} cached tokens")
        finally:
            server.kill()


if __name__ == "__main__":
    main()
