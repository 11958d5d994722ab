"""A server under full load with clients that leave, read slowly or send nonsense.

    python3 tests/soak/soak_test.py [--seconds N] [--clients N] [--seed N] BINARY

Passes when every finished answer equals the one the request got alone, nothing is left behind, the
resident memory stays flat and the server stops cleanly."""

import argparse
import http.client
import json
import pathlib
import random
import socket
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration/product"))

import support  # noqa: E402  (takes the last argument off the command line)
from support import Server  # noqa: E402

MODEL = "deepinfer-tiny"
SETTLE_S = 20
# Buffers of the allocator and of threads that start late.
MEMORY_SLACK_KB = 24 * 1024
PHRASES = ("What is a KV cache?", "Hello", "Reverse the word: lantern", "Count to five.",
           "Tell me about paged attention and why a block table helps.")


def requests_under_test():
    """(path, body) of requests whose answers are fixed: greedy, or drawn with a seed."""
    cases = []
    for i, phrase in enumerate(PHRASES):
        chat = {"model": MODEL, "thinking": {"type": "disabled"}, "max_tokens": 24 + 8 * i,
                "messages": [{"role": "user", "content": phrase}]}
        cases.append(("/v1/chat/completions", {**chat, "temperature": 0}))
        cases.append(("/v1/chat/completions",
                      {**chat, "temperature": 1, "seed": 100 + i, "top_p": 0.95}))
        raw = {"model": MODEL, "prompt": phrase * (1 + 7 * i), "max_tokens": 20,
               "ignore_eos": True}
        cases.append(("/v1/completions", {**raw, "temperature": 0, "repetition_penalty": 1.2}))
        cases.append(("/v1/completions", {**raw, "temperature": 0.8, "seed": i, "n": 2}))
    return cases


def connect(server):
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=support.TIMEOUT_S)


def post(server, path, body):
    connection = connect(server)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def texts_of(choices):
    """{index: (text, finish_reason)} of a whole answer."""
    return {c["index"]: (c["message"]["content"] if "message" in c else c["text"],
                         c["finish_reason"]) for c in choices}


def texts_of_stream(raw):
    """The same of a streamed one."""
    texts, finishes = {}, {}
    events = [e[6:] for e in raw.decode().split("\n\n") if e.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        raise AssertionError("stream without an end: %r" % raw[-200:])
    for event in map(json.loads, events[:-1]):
        if "error" in event:
            raise AssertionError("error in a stream: %r" % event)
        for choice in event["choices"]:
            index = choice["index"]
            piece = choice["delta"].get("content") if "delta" in choice else choice["text"]
            texts[index] = texts.get(index, "") + (piece or "")
            if choice["finish_reason"]:
                finishes[index] = choice["finish_reason"]
    return {i: (texts[i], finishes.get(i)) for i in texts}


def metric(server, name):
    """The sum over the series of this name."""
    connection = connect(server)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    found = [float(line.rsplit(" ", 1)[1]) for line in lines
             if line.startswith(name + "{") or line.startswith(name + " ")]
    return sum(found) if found else None


def resident_kb(server):
    status = pathlib.Path("/proc/%d/status" % server.process.pid).read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


class Soak:
    def __init__(self, server, clients, seed):
        self.server = server
        self.seed = seed
        self.cases = requests_under_test()
        self.expected = [self.run_alone(*case) for case in self.cases]
        self.lock = threading.Lock()
        self.counts = {}
        self.faults = []
        self.stop_at = 0
        self.num_clients = clients

    def run_alone(self, path, body):
        status, raw = post(self.server, path, body)
        assert status == 200, raw
        return texts_of(json.loads(raw)["choices"])

    def note(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def fault(self, text):
        with self.lock:
            self.faults.append(text)

    def expect(self, index, texts, how):
        if texts != self.expected[index]:
            self.fault("%s answer of case %d differs: %r, alone %r" %
                       (how, index, texts, self.expected[index]))
        self.note(how)

    def is_refusal(self, status):
        """A full queue; or a step that stood still for seconds, as on a machine without time for it,
        while which a server says that it is not well."""
        stalls = [e for e in self.server.events if e.get("event") == "engine.stalled"]
        return status == 429 or status == 503 and bool(stalls)

    # --- what a client may do ---

    def whole(self, rng):
        index = rng.randrange(len(self.cases))
        status, raw = post(self.server, *self.cases[index])
        if self.is_refusal(status):
            return self.note("refused")
        if status != 200:
            return self.fault("status %d: %r" % (status, raw[:300]))
        self.expect(index, texts_of(json.loads(raw)["choices"]), "whole")

    def stream(self, rng, pause_s=0.0, how="streamed"):
        index = rng.randrange(len(self.cases))
        path, body = self.cases[index]
        connection = connect(self.server)
        try:
            connection.request("POST", path, json.dumps({**body, "stream": True}),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            raw = b""
            while True:
                piece = response.read(64 if pause_s else 65536)
                if not piece:
                    break
                raw += piece
                if pause_s:
                    time.sleep(pause_s)
            if self.is_refusal(response.status):
                return self.note("refused")
            if response.status != 200:
                return self.fault("status %d: %r" % (response.status, raw[:300]))
            self.expect(index, texts_of_stream(raw), how)
        finally:
            connection.close()

    def slow_reader(self, rng):
        self.stream(rng, pause_s=0.01, how="slowly read")

    def leave(self, rng):
        """Goes away before, during or after the first tokens."""
        path, body = rng.choice(self.cases)
        data = json.dumps({**body, "stream": rng.random() < 0.7, "max_tokens": 2000,
                           "ignore_eos": True}).encode()
        head = ("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                "Content-Length: %d\r\n\r\n" % (path, len(data))).encode()
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=30) as s:
            s.sendall((head + data)[:rng.randrange(1, len(head + data))] if rng.random() < 0.1
                      else head + data)
            time.sleep(rng.random() * 0.2)
            if rng.random() < 0.5:
                s.settimeout(1)
                try:
                    s.recv(rng.randrange(1, 4096))
                except OSError:
                    pass
        self.note("left")

    def nonsense(self, rng):
        path, body = rng.choice(self.cases)
        text = json.dumps(body).encode()
        bad = rng.choice((
            text[:rng.randrange(len(text))], b"\xff" + text,
            json.dumps({**body, "temperature": -1}).encode(),
            json.dumps({**body, "model": "nobody"}).encode(),
            json.dumps({**body, "max_tokens": 10 ** 9}).encode(),
            json.dumps({**body, "logit_bias": {"-5": 1}}).encode()))
        status, raw = post(self.server, path, bad)
        if not 400 <= status < 500:
            self.fault("nonsense got %d: %r" % (status, raw[:300]))
        self.note("nonsense")

    # --- the run ---

    def client(self, number):
        rng = random.Random(self.seed * 1000 + number)
        actions = (self.whole, self.stream, self.slow_reader, self.leave, self.nonsense)
        while time.monotonic() < self.stop_at and not self.faults:
            try:
                rng.choices(actions, weights=(4, 4, 1, 3, 1))[0](rng)
            except Exception as error:  # whatever it is, it is a finding
                self.fault("%s: %s" % (type(error).__name__, error))

    def run(self, seconds):
        self.stop_at = time.monotonic() + seconds
        threads = [threading.Thread(target=self.client, args=(i,))
                   for i in range(self.num_clients)]
        for thread in threads:
            thread.start()
        time.sleep(seconds / 3)
        warm_kb = resident_kb(self.server)
        for thread in threads:
            thread.join()
        return warm_kb

    def check_idle(self):
        """Nothing runs or waits, no block is held, and the engine never refused a valid request."""
        names = ("num_requests_running", "num_requests_waiting", "blocks_in_use",
                 "state_slots_in_use")
        deadline = time.monotonic() + SETTLE_S
        while True:
            left = {n: metric(self.server, "deepinfer:" + n) for n in names}
            if not any(left.values()):
                break
            if time.monotonic() > deadline:
                self.fault("left behind after the load: %s" % left)
                break
            time.sleep(0.1)
        if metric(self.server, "deepinfer:validator_gap_total"):
            self.fault("the engine refused a request that was valid")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with Server("--max-queued-requests", 8, "--log-requests", "off") as server:
        soak = Soak(server, options.clients, options.seed)
        warm_kb = soak.run(options.seconds)
        soak.check_idle()
        end_kb = resident_kb(server)
        if end_kb > warm_kb + MEMORY_SLACK_KB:
            soak.fault("resident memory grew from %d to %d kB" % (warm_kb, end_kb))
        for index, case in enumerate(soak.cases):
            if soak.run_alone(*case) != soak.expected[index]:
                soak.fault("case %d has another answer after the load" % index)
        code = server.stop()
        if code != 0:
            soak.fault("the server stopped with status %d" % code)
    print("%s; memory %d -> %d kB; seed %d" % (
        ", ".join("%s %d" % item for item in sorted(soak.counts.items())), warm_kb, end_kb,
        options.seed))
    for needed in ("whole", "streamed", "left", "nonsense"):
        if not soak.counts.get(needed):
            soak.fault("no client came to '%s'" % needed)
    for fault in soak.faults[:10]:
        print("FAULT: " + fault, file=sys.stderr)
    sys.exit(1 if soak.faults else 0)


if __name__ == "__main__":
    main()
