"""Turns with tool calls that outlive the process that sampled them: beside the persistent cache,
found by later starts, by other servers and by other gateways with the folder, until erased."""

import json
import os
import pathlib
import signal
import tempfile
import time
import unittest

import support
from support import Server, run
from bug_cases_test import CHAT, WEATHER, call_text
from cluster_support import Cluster, wait_for
from serve_test import chat, request

# Spaced as no writer of JSON would: rendered from what clients send back it is other tokens.
TURN = call_text(reasoning="Hm.", content="Let me see.", city="Oslo", days={"first": 1}).replace(
    '{"first": ', '{"first":   ')
KEYS = {"keys": [{"name": "a", "key": "secret-a"}, {"name": "b", "key": "secret-b"}]}
AS_A, AS_B = ({"Authorization": "Bearer secret-" + name} for name in "ab")


def used_turns(server, headers=None):
    status, text = request(server, "GET", "/metrics", headers=headers)
    assert status == 200, text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.decode().splitlines()
               if line.startswith("deepinfer:exact_replay_turns_total{") and '"used"' in line)


class KeptTurns(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.base = pathlib.Path(folder.name)
        self.dir = self.base / "kv"

    def server(self, *args):
        server = Server("--kv-dir", self.dir, "--enable-test-hooks", *args)
        self.addCleanup(server.__exit__)
        return server

    def files(self):
        return [path for path in (self.dir / "replay").rglob("*")
                if path.is_file() and not path.name.endswith((".part", ".erased"))]

    def first_round(self, server, headers=None, **fields):
        """The history behind a round with a call, as an agent sends it back."""
        question = {"role": "user", "content": "How is the weather?"}
        status, answer = request(server, "POST", CHAT, {
            **chat("x"), "max_tokens": 4000, "thinking": {"type": "enabled"}, "tools": [WEATHER],
            "messages": [question], "test_force_text": TURN, **fields}, headers)
        self.assertEqual(status, 200, answer)
        message = answer["choices"][0]["message"]
        call = message["tool_calls"][0]
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]))
        del message["reasoning_content"]
        return [question, message,
                {"role": "tool", "tool_call_id": call["id"], "content": "It is sunny."}]

    def uses(self, server, history, headers=None):
        """How many turns of the history were rendered as they were sampled."""
        before = used_turns(server, headers)
        status, answer = request(server, "POST", CHAT, {
            **chat("x", max_tokens=2), "thinking": {"type": "enabled"}, "tools": [WEATHER],
            "messages": history}, headers)
        self.assertEqual(status, 200, answer)
        return used_turns(server, headers) - before

    def wait_files(self, count):
        deadline = time.monotonic() + support.TIMEOUT_S
        while len(self.files()) < count:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def test_a_server_that_was_killed_knows_its_turns_again(self):
        with self.server() as server:
            history = self.first_round(server)
            self.wait_files(1)
            self.assertEqual(self.files()[0].stat().st_mode & 0o777, 0o600)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
        with self.server() as server:
            self.assertEqual(self.uses(server, history), 1)
            self.assertEqual(self.uses(server, history), 1)
            history[1]["tool_calls"][0]["function"]["arguments"] = '{"city": "Rome"}'
            self.assertEqual(self.uses(server, history), 0)

    def test_a_server_that_stops_leaves_all_its_turns(self):
        with self.server() as server:
            histories = [self.first_round(server) for _ in range(20)]
            self.assertEqual(server.stop(), 0)
        self.assertEqual(len(self.files()), 20)
        with self.server() as server:
            self.assertEqual(sum(self.uses(server, history) for history in histories), 20)

    def test_what_stays_in_memory_is_not_written(self):
        with self.server() as server:
            history = self.first_round(server, prompt_cache_retention="in_memory")
            self.assertEqual(self.uses(server, history), 1)
            self.assertEqual(server.stop(), 0)
        self.assertEqual(self.files(), [])
        with self.server("--exact-replay", "off") as server:
            self.first_round(server)
            self.assertEqual(server.stop(), 0)
        self.assertEqual(self.files(), [])

    def test_turns_are_not_written_where_tenants_may_have_keys(self):
        keys, key_file = self.base / "keys.json", self.base / "tenant.keys"
        keys.write_text(json.dumps(KEYS))
        done = run("kv", "key", "--dir", self.dir, "--tenant", "a", "--key-file", key_file)
        self.assertEqual(done.returncode, 0, done.stderr)
        with self.server("--api-key-file", keys, "--kv-key-file", key_file) as server:
            history = self.first_round(server, AS_A)
            self.assertEqual(self.uses(server, history, AS_A), 1)
            self.assertEqual(server.stop(), 0)
        self.assertEqual(self.files(), [])

    def test_servers_with_one_folder_know_each_others_turns_until_they_are_erased(self):
        keys = self.base / "keys.json"
        keys.write_text(json.dumps(KEYS))
        flags = ("--api-key-file", keys, "--kv-shared", "--kv-node")
        with self.server(*flags, "one") as one, self.server(*flags, "two") as two:
            of_a, of_b = self.first_round(one, AS_A), self.first_round(one, AS_B)
            self.wait_files(2)
            self.assertEqual(self.uses(two, of_a, AS_B), 0)
            self.assertEqual(self.uses(two, of_a, AS_A), 1)
            done = run("kv", "erase", "--dir", self.dir, "--tenant", "a", "--yes")
            self.assertEqual(done.returncode, 0, done.stderr)
            for server in (one, two):
                self.assertEqual(self.uses(server, of_a, AS_A), 0)
                self.assertEqual(self.uses(server, of_b, AS_B), 1)
            self.assertEqual(len(self.files()), 1)

    def test_a_gateway_that_begins_anew_goes_on_with_turns_and_prefixes(self):
        with Cluster("--workers", "1", "--kv-dir", str(self.dir),
                     "--worker-flag=--replay=exact", "--gateway-flag=--enable-test-hooks") as cluster:
            history = self.first_round(cluster)
            history[0]["content"] += " word" * 600
            self.assertEqual(self.uses(cluster, history), 1)
            self.wait_files(1)
            old = cluster.pid_of("gateway")
            os.kill(old, signal.SIGKILL)
            wait_for(lambda: cluster.pid_of("gateway") not in (0, old))
            cluster.wait_ready()
            status, answer = request(cluster, "POST", CHAT, {
                **chat("x", max_tokens=2), "thinking": {"type": "enabled"}, "tools": [WEATHER],
                "messages": history})
            self.assertEqual(status, 200)
            self.assertEqual(used_turns(cluster), 1)
            self.assertGreater(answer["usage"]["prompt_cache_hit_tokens"], 256)


if __name__ == "__main__":
    unittest.main()
