"""Every fault in every state of a request, one after the other on a cluster of real processes: the
answer is that of one process, nothing is held afterwards, and nobody but the victim ends.

A client of a gateway that was lost asks again with the same Idempotency-Key. With --all before the
binary every row runs, else those that find most.
"""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import sys
import threading
import time
import unittest

ALL = "--all" in sys.argv
if ALL:
    sys.argv.remove("--all")

# pylint: disable=wrong-import-position
import cluster_support
import support
from cluster_support import Cluster, wait_for

LONG = "word " * 2500 + "end"
SCHEMA = cluster_support.WHOLE[1][1]["response_format"]

# Path and body: an answer at temperature 0, a sampled one without a seed, a long prompt, a grammar,
# and one that is not streamed.
REQUESTS = [
    ("/v1/completions", {"prompt": "Count from one to fifty.", "max_tokens": 300, "stream": True,
                         "ignore_eos": True, "temperature": 0}),
    ("/v1/completions", {"prompt": "Write a story.", "max_tokens": 300, "stream": True,
                         "ignore_eos": True, "temperature": 1}),
    ("/v1/completions", {"prompt": LONG, "max_tokens": 40, "stream": True, "ignore_eos": True,
                         "temperature": 1, "seed": 5}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Describe a cat."}],
                              "max_tokens": 160, "stream": True, "temperature": 1, "seed": 8,
                              "thinking": {"type": "disabled"}, "response_format": SCHEMA}),
    ("/v1/completions", {"prompt": "Name three fruits:", "n": 2, "max_tokens": 120, "seed": 7,
                         "temperature": 1}),
]

# When: "prefill" as soon as a prefill worker has work, "first" at the first token, "decode" at the
# eighth of every stream. Bound: seconds until every client has its whole answer.
ROWS = [
    # state, victim, fault, bound, in the short form
    ("prefill", "prefill", "kill", 20, True),
    ("prefill", "decode", "kill", 20, False),
    ("prefill", "gateway", "kill", 20, False),
    ("first", "prefill", "kill", 20, False),
    ("first", "decode", "kill", 20, True),
    ("first", "gateway", "kill", 20, False),
    ("decode", "prefill", "kill", 20, False),
    ("decode", "decode", "kill", 20, False),
    ("decode", "gateway", "kill", 20, True),
    ("decode", "registry", "kill", 20, False),
    ("prefill", "registry", "kill", 20, False),
    ("prefill", "prefill", "stop", 20, False),
    ("first", "decode", "stop", 20, False),
    ("decode", "decode", "stop", 20, False),
    ("decode", "gateway", "stop", 20, True),
    ("decode", "registry", "stop", 20, False),
    ("decode", "decode+prefill", "kill", 25, False),
    ("decode", "decode+gateway", "kill", 25, True),
    ("decode", "decode", "drain", 25, False),
    ("prefill", "prefill", "drain", 25, False),
    ("prefill", "prefill+gateway", "kill", 30, False),
]
# Of processes that nobody misses by their silence.
STOP_S = 5.0


class Client(threading.Thread):
    """One request, asked again with its key for as long as no whole answer has come."""

    def __init__(self, port, path, body, key, limit_s=60):
        super().__init__()
        self.port, self.path, self.key = port, path, key
        self.body = dict(body, model="deepinfer-tiny")
        self.deadline = time.monotonic() + limit_s
        self.answer, self.events, self.error, self.attempts = None, 0, None, 0
        self.start()

    def run(self):
        while True:
            self.attempts += 1
            try:
                answer = self.ask()
            except (OSError, http.client.HTTPException) as error:
                answer, self.error = None, repr(error)
            except AssertionError as error:  # an answer, and a wrong one
                self.error = str(error)
                return
            if answer is not None:
                self.answer, self.error = answer, None
                return
            if time.monotonic() > self.deadline:
                return
            time.sleep(0.1)

    def ask(self):
        """Texts and finish reasons by choice; None when the answer broke off."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port,
                                                           timeout=60)) as connection:
            return self.ask_over(connection)

    def ask_over(self, connection):
        connection.request("POST", self.path, json.dumps(self.body),
                           {"Content-Type": "application/json", "Idempotency-Key": self.key})
        response = connection.getresponse()
        if response.status == 503:  # it starts
            response.read()
            return None
        if response.status != 200:
            raise AssertionError("%d %s" % (response.status, response.read()))
        if not self.body.get("stream"):
            choices = json.loads(response.read())["choices"]
            return [(c["text"], c["finish_reason"]) for c in choices]
        text, finish, done = "", None, False
        for line in response:
            if line.startswith(b"data: [DONE]"):
                done = True
            elif line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    raise AssertionError(event["error"])
                for choice in event.get("choices", []):
                    text += choice.get("text") or choice.get("delta", {}).get("content") or ""
                    finish = choice.get("finish_reason") or finish
                self.events += 1
        return [(text, finish)] if done else None


def ask_all(port, name):
    return [Client(port, path, body, "%s-%d" % (name, i))
            for i, (path, body) in enumerate(REQUESTS)]


class FaultMatrixTest(cluster_support.ClusterCase):
    @classmethod
    def setUpClass(cls):
        pass  # what it compares with depends on the keys

    def wanted(self, names):
        """The answers of one process, by name of the row."""
        with support.Server("--threads", "1", "--replay=exact") as server:
            want = {}
            for name in names:
                clients = ask_all(server.port, name)
                for client in clients:
                    client.join()
                want[name] = [c.answer for c in clients]
            return want

    def reach(self, cluster, state, clients):
        if state == "prefill":
            wait_for(lambda: any(w["role"] == "prefill" and w["running"] + w["waiting"] > 0
                                 for w in cluster.status()) or any(c.events for c in clients))
        else:
            count = 1 if state == "first" else 8
            quick = [c for c in clients if c.body.get("stream") and c.body.get("prompt") != LONG]
            wait_for(lambda: all(c.events >= count or c.answer for c in quick))

    def victims(self, cluster, roles):
        names = []
        for role in roles.split("+"):
            if role in ("gateway", "registry"):
                names.append(role)
            else:
                of_role = [w for w in cluster.status() if w["role"] == role]
                names.append(max(of_role, key=lambda w: w["running"])["name"])
        return names

    def strike(self, cluster, names, fault):
        pids = [cluster.pid_of(name) for name in names]
        if fault == "drain":
            done = support.run("cluster", "drain", names[0], "--dir", cluster.folder.name,
                               "--within", "0.2")
            self.assertEqual(done.returncode, 0, done.stderr)
            return
        workers = not {"gateway", "registry"} & set(names)
        silent = cluster.logs("gateway").count("worker.silent") if workers else None
        for pid in pids:
            os.kill(pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        if fault == "stop":
            if silent is None:
                time.sleep(STOP_S)
            else:
                wait_for(lambda: cluster.logs("gateway").count("worker.silent") > silent)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def listed(self, cluster):
        listed = json.loads(pathlib.Path(cluster.folder.name, "cluster.json").read_text())
        return {p["name"]: p["pid"] for p in listed}

    def row(self, cluster, name, state, roles, fault, bound_s, want):
        before = self.listed(cluster)
        clients = ask_all(cluster.port, name)
        self.reach(cluster, state, clients)
        names = self.victims(cluster, roles)
        lost_before = cluster.logs("gateway").count("request.lost_worker")
        under_way = sum(c.answer is None for c in clients)
        begin = time.monotonic()
        self.strike(cluster, names, fault)
        for i, client in enumerate(clients):
            client.join()
            self.assertIsNone(client.error, "request %d" % i)
            self.assertEqual(client.answer, want[i], "request %d" % i)
            if "gateway" not in roles:
                self.assertEqual(client.attempts, 1, "request %d" % i)
        took_s = time.monotonic() - begin
        self.assertLess(took_s, bound_s)
        # The fault met requests that were under way.
        self.assertGreater(under_way, 0)
        if state == "decode" and "gateway" in roles and fault == "kill":
            self.assertGreater(max(c.attempts for c in clients), 1)
        elif state == "decode" and "decode" in roles and fault != "drain":  # which lets runs end
            self.assertGreater(cluster.logs("gateway").count("request.lost_worker"), lost_before)
        if fault == "drain":
            return took_s
        killed = names if fault == "kill" else []
        wait_for(lambda: all(self.listed(cluster)[n] not in (0, before[n]) for n in killed))
        wait_for(lambda: all(self.listed(cluster).values()))
        wait_for(cluster.all_ready)
        after = self.listed(cluster)
        ended = sorted(n for n in before if before[n] != after[n])
        self.assertEqual(ended, sorted(killed))
        self.expect_nothing_held(cluster)
        return took_s

    def cluster(self):
        return Cluster("--prefill", "2", "--decode", "2", "--registry", "dev",
                       "--worker-flag=--replay=exact")

    def test_every_fault_in_every_state(self):
        rows = [row for row in ROWS if ALL or row[4]]
        names = ["%s-%s-%s" % row[:3] for row in rows]
        want = self.wanted(names)
        for answers in want.values():
            self.assertNotIn(None, answers)
        cluster, used_up = None, True
        try:
            for name, (state, roles, fault, bound_s, _) in zip(names, rows):
                if used_up:
                    if cluster is not None:
                        cluster.__exit__()
                    cluster = self.cluster()
                with self.subTest(name):
                    took_s = self.row(cluster, name, state, roles, fault, bound_s, want[name])
                    print("%-28s %5.1f s" % (name, took_s), file=sys.stderr)
                # One that was drained does not come back.
                used_up = fault == "drain"
        finally:
            if cluster is not None:
                cluster.__exit__()


if __name__ == "__main__":
    unittest.main()
