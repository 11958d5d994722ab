"""Two `deepinfer serve` on two mounts of one file system that stands still for a while: every request
gets the answer it would have got anyway, and afterwards blocks are found again.

    python3 shared_servers_test.py [--stall-seconds N] DEEPINFER

The file system is a GlusterFS volume whose only brick is stopped; ends with status 77, which ctest
reads as skipped, where that cannot be had."""

import argparse
import http.client
import json
import pathlib
import random
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "product"))
import support  # noqa: E402
from store_nodes import GlusterVolume, Unavailable, until  # noqa: E402

SKIPPED = 77
BLOCK = 128
LENGTH = 1500
NUM_PROMPTS = 12
# A starved machine must not make a healthy disk look slow.
PATIENT_MS = 200


def prompt(seed):
    draw = random.Random(seed)
    return [draw.randrange(300, 8000) for _ in range(LENGTH)]


class Worker:
    """A server with its mount, and what it was asked."""

    def __init__(self, volume, index, name):
        self.server = support.Server(
            "--kv-shared", "--kv-node", name, "--kv-dir", volume.folder(index, "kv"), "--replay",
            "exact", "--kv-group-commit-ms", 50, "--kv-min-load-wait-ms", PATIENT_MS)

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port,
                                                timeout=support.TIMEOUT_S)
        connection.request(method, path, body and json.dumps(body),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        assert response.status == 200, text
        return text

    def answer(self, ids):
        """(token ids, tokens by tier, seconds)"""
        begin = time.monotonic()
        got = json.loads(self.request("POST", "/v1/completions", {
            "model": "deepinfer-tiny", "prompt": ids, "max_tokens": 8, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True}))
        [choice] = got["choices"]
        return choice["token_ids"], got["usage"]["deepinfer"]["cached_by_tier"], \
            time.monotonic() - begin

    def metric(self, name, label=""):
        lines = self.request("GET", "/metrics").splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines
                   if line.startswith("deepinfer:" + name) and label in line)

    def stored(self, blocks):
        until(lambda: self.metric("kv_index_entries") >= blocks, 120, "blocks are known")

    def stop(self):
        status = self.server.stop()
        self.server.__exit__()
        return status


def unreached(worker):
    """Tokens whose blocks could not be read in time, or not at all."""
    return sum(worker.metric("kv_miss_tokens_total", f'reason="{reason}"')
               for reason in ("deadline", "breaker", "io_error"))


def check(volume, seconds):
    prompts = [prompt(seed) for seed in range(NUM_PROMPTS)]
    a, b = Worker(volume, 0, "a"), Worker(volume, 1, "b")
    try:
        cold = [a.answer(ids) for ids in prompts]
        b.stored(NUM_PROMPTS * (LENGTH // BLOCK))
        # The first half shows that sharing works; the other half is asked for during the stall.
        warm = [b.answer(ids) for ids in prompts[:NUM_PROMPTS // 2]]
        for got, want in zip(warm, cold):
            assert got[0] == want[0]
            assert got[1]["remote"] > 0, got
        unreached_before = unreached(b)
        volume.stall(True)
        timer = threading.Timer(seconds, volume.stall, (False,))
        timer.start()
        slowest, asked = 0, 0
        try:
            begin = time.monotonic()
            while time.monotonic() - begin < seconds - 1:
                i = NUM_PROMPTS // 2 + asked % (NUM_PROMPTS // 2)
                for worker in (a, b):
                    ids = prompts[i] if asked < NUM_PROMPTS // 2 else prompt(1000 + asked)
                    tokens, _, elapsed = worker.answer(ids)
                    assert asked >= NUM_PROMPTS // 2 or tokens == cold[i][0], "another answer"
                    slowest = max(slowest, elapsed)
                asked += 1
            assert unreached(b) > unreached_before, "nothing was asked of the stalled file system"
        finally:
            timer.join()
        median_cold = sorted(seconds for _, _, seconds in cold)[NUM_PROMPTS // 2]
        print(f"stalled for {seconds} s: {2 * asked} requests, the slowest took {slowest:.2f} s; "
              f"without a cache one takes {median_cold:.2f} s (median)")
        # A tier that was switched off is tried again by the next request that finds something there.
        fresh = iter(range(2000, 3000))

        def shares_again():
            ids = prompt(next(fresh))
            known = b.metric("kv_index_entries")
            want = a.answer(ids)[0]
            b.stored(known + LENGTH // BLOCK)
            got = b.answer(ids)
            assert got[0] == want, "another answer"
            return got[1]["remote"] > 0

        until(shares_again, 400, "blocks are shared again")
        assert b.metric("kv_tier_state", 'state="on"') == 1
        assert a.metric("kv_corrupt_records_total") == b.metric("kv_corrupt_records_total") == 0
        assert a.stop() == 0 and b.stop() == 0
    finally:
        for worker in (a, b):
            worker.server.__exit__()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stall-seconds", type=int, default=15)
    arguments = parser.parse_args()
    try:
        volume = GlusterVolume(2)
    except Unavailable as reason:
        print(f"skipped: {reason}")
        return SKIPPED
    try:
        check(volume, arguments.stall_seconds)
    finally:
        volume.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
