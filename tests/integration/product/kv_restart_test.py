"""A server with its persistent cache, killed and started again: real processes, real files."""

import http.client
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import support
from support import BINARY, DEMO_MODEL, Server, run

# Block of the demo model; the number of tokens a block holds does not depend on the model.
BLOCK = 128
# A starved machine waits for its disk instead of computing.
PATIENT_MS = 600000


def prompt(length, seed):
    """Ids of ordinary tokens."""
    draw = random.Random(seed)
    return [draw.randrange(300, 8000) for _ in range(length)]


def complete(server, ids, max_tokens=8, headers=None, **fields):
    body = {"model": "deepinfer-tiny", "prompt": ids, "max_tokens": max_tokens, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True, "logprobs": 5, **fields}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=support.TIMEOUT_S)
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"Content-Type": "application/json", **(headers or {})})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    assert response.status == 200, answer
    return answer


def text_and_logprobs(answer):
    [choice] = answer["choices"]
    return choice["text"], choice["logprobs"]


def by_tier(answer):
    account = answer["usage"]["deepinfer"]
    tiers = account["cached_by_tier"]
    assert sum(tiers.values()) == account["cached_tokens"], account
    assert account["cached_tokens"] + account["computed_tokens"] == \
        answer["usage"]["prompt_tokens"], account
    return tiers


def metrics(server):
    """{name{labels}: value}, our own names only."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=support.TIMEOUT_S)
    connection.request("GET", "/metrics", headers=server.headers)
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return {name: float(value) for name, value in
            (line.rsplit(" ", 1) for line in lines if line.startswith("deepinfer:"))}


def metric(server, name, **labels):
    wanted = [f'{k}="{v}"' for k, v in labels.items()]
    found = [v for k, v in metrics(server).items()
             if k.split("{")[0] == "deepinfer:" + name and all(w in k for w in wanted)]
    assert found, name
    return sum(found)


class KvRestart(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name) / "kv"

    def server(self, *args, stored=0, commit_ms=50, headers=None, **options):
        """A server on the folder, once it knows of so many blocks that are there already."""
        server = Server("--kv-dir", self.dir, "--kv-group-commit-ms", commit_ms, "--replay",
                        "exact", "--kv-min-load-wait-ms", PATIENT_MS, *args, **options)
        self.addCleanup(server.__exit__)
        server.headers = headers or {}
        if stored:
            self.wait_stored(server, stored)
        return server

    def wait_metric(self, server, name, least):
        deadline = time.monotonic() + 60
        while metric(server, name) < least:
            self.assertLess(time.monotonic(), deadline, name)
            time.sleep(0.05)

    def wait_stored(self, server, blocks):
        self.wait_metric(server, "kv_index_entries", blocks)

    def kill(self, server):
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()

    def test_a_killed_server_finds_its_prompts_again_with_equal_answers(self):
        prompts = [prompt(length, seed) for seed, length in enumerate((1500, 900, 2100))]
        with self.server() as server:
            opened = server.wait_event("kv.opened")
            self.assertEqual(opened["dir"], str(self.dir))
            cold = [complete(server, ids) for ids in prompts]
            for answer in cold:
                self.assertEqual(answer["usage"]["prompt_cache_hit_tokens"], 0)
            self.wait_stored(server, sum(len(ids) // BLOCK for ids in prompts))
            self.wait_metric(server, "kv_store_seconds_count", 1)
            self.wait_metric(server, "kv_tenant_bytes", 1)
            self.kill(server)
        for ids, before in zip(prompts, cold):
            with self.server(stored=sum(len(ids) // BLOCK for ids in prompts)) as server:
                answer = complete(server, ids)
                self.assertEqual(text_and_logprobs(answer), text_and_logprobs(before))
                tiers = by_tier(answer)
                self.assertGreater(tiers["disk"], 0)
                self.assertEqual(tiers["dram"], 0)
                self.assertEqual(metric(server, "kv_loaded_tokens_total", tier="disk"),
                                 len(ids) // BLOCK * BLOCK)
                self.assertEqual(metric(server, "kv_tier_state", state="on"), 1)
                self.wait_metric(server, "kv_recovery_seconds", 1e-6)
                self.assertGreater(server.wait_event("request")["disk_tokens"], 0)
                self.assertEqual(server.stop(), 0)

    def test_a_stop_commits_what_is_queued(self):
        ids = prompt(1000, 10)
        with self.server(commit_ms=3600000) as server:
            complete(server, ids)
            self.assertEqual(server.stop(), 0)
        with self.server(stored=len(ids) // BLOCK) as server:
            self.assertGreater(by_tier(complete(server, ids))["disk"], 0)

    def test_a_kill_while_it_writes_costs_at_most_misses(self):
        expected = {}
        with Server("--kv-dir", "none", "--replay", "exact") as server:
            for seed in range(6):
                expected[seed] = text_and_logprobs(complete(server, prompt(700, seed)))
        for attempt in range(3):
            with self.server(commit_ms=1) as server:
                for seed in range(6):
                    answer = complete(server, prompt(700, seed))
                    self.assertEqual(text_and_logprobs(answer), expected[seed], (attempt, seed))
                    by_tier(answer)
                    if seed == 2 + attempt:
                        # In the middle of the next request and of the writes of this one.
                        threading.Timer(0.05, self.kill, [server]).start()
                        try:
                            complete(server, prompt(1500, 100 + attempt))
                        except (OSError, http.client.HTTPException):
                            pass
                        break
        report = run("kv", "verify", "--dir", self.dir, "--json")
        self.assertEqual(json.loads(report.stdout)["problems"], [])
        # The index grows while it is read: wait for all of it.
        stats = json.loads(run("kv", "stats", "--dir", self.dir, "--json").stdout)
        with self.server(stored=stats["namespaces"][0]["blocks"]) as server:
            answer = complete(server, prompt(700, 0))
            self.assertEqual(text_and_logprobs(answer), expected[0])
            self.assertGreater(by_tier(answer)["disk"], 0)

    def test_damaged_segments_are_misses_with_a_reason(self):
        ids = prompt(1500, 20)
        with self.server() as server:
            before = complete(server, ids)
            self.assertEqual(server.stop(), 0)
        items = json.loads(run("kv", "ls", "--dir", self.dir, "--blocks", "--json").stdout)["items"]
        last = max(items, key=lambda item: item["block"])
        with open(last["path"], "r+b") as segment:
            offset = last["page"] * 4096 + 2000
            segment.seek(offset)
            byte = segment.read(1)
            segment.seek(offset)
            segment.write(bytes([byte[0] ^ 1]))
        with self.server(stored=len(ids) // BLOCK) as server:
            answer = complete(server, ids)
            self.assertEqual(text_and_logprobs(answer), text_and_logprobs(before))
            self.assertGreater(by_tier(answer)["disk"], 0)
            self.assertEqual(metric(server, "kv_corrupt_records_total"), 1)
            self.assertEqual(metric(server, "kv_miss_tokens_total", reason="corrupt"), BLOCK)
            server.wait_event("kv.corrupt_record")
            self.assertEqual(server.stop(), 0)
        # The whole file is noise.
        for path in self.dir.rglob("seg-*"):
            path.write_bytes(os.urandom(1 << 20))
        with self.server() as server:
            answer = complete(server, ids)
            self.assertEqual(text_and_logprobs(answer), text_and_logprobs(before))
            self.assertEqual(answer["usage"]["prompt_cache_hit_tokens"], 0)

    def test_a_disk_that_takes_no_more_costs_only_hits(self):
        def limit_files():
            # Writes beyond 64 KiB of a file fail, as on a full disk.
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))

        ids = prompt(1000, 60)
        with self.server(preexec_fn=limit_files) as server:
            first = complete(server, ids)
            deadline = time.monotonic() + 60
            while metric(server, "kv_dropped_writes_total") == 0:
                self.assertLess(time.monotonic(), deadline, "the writes did not fail")
                time.sleep(0.05)
            again = complete(server, ids)
            self.assertEqual(text_and_logprobs(again), text_and_logprobs(first))
            self.assertGreater(by_tier(again)["dram"], 0)
            self.assertEqual(metric(server, "kv_index_entries"), 0)
            self.assertEqual(server.stop(), 0)
        with self.server() as server:
            answer = complete(server, ids)
            self.assertEqual(text_and_logprobs(answer), text_and_logprobs(first))
            self.assertEqual(by_tier(answer)["disk"], 0)

    def test_a_second_server_does_not_touch_a_store_in_use(self):
        with self.server() as server:
            refused = subprocess.run([BINARY, "serve", str(DEMO_MODEL), "--port", "0", "--kv-dir",
                                      str(self.dir)], capture_output=True, text=True,
                                     timeout=support.TIMEOUT_S)
            self.assertEqual(refused.returncode, 1, refused.stderr)
            self.assertIn("--kv-dir", refused.stderr)
            self.assertIn("in use", refused.stderr)
            complete(server, prompt(500, 30))
            self.assertEqual(server.stop(), 0)

    def test_a_second_server_may_read_a_store_in_use(self):
        ids, later = prompt(1000, 33), prompt(700, 34)
        with self.server() as owner:
            before = complete(owner, ids)
            self.wait_stored(owner, len(ids) // BLOCK)
            with self.server("--kv-when-in-use", "read-only", stored=len(ids) // BLOCK) as second:
                self.assertIs(second.wait_event("kv.opened")["read_only"], True)
                answer = complete(second, ids)
                self.assertEqual(text_and_logprobs(answer), text_and_logprobs(before))
                self.assertGreater(by_tier(answer)["remote"], 0)
                # What it computes stays with it.
                complete(second, prompt(900, 35))
                self.assertEqual(metric(second, "kv_index_entries"), len(ids) // BLOCK)
                # Its owner is killed in the middle, and another one takes the folder over.
                self.kill(owner)
                with self.server(stored=len(ids) // BLOCK) as successor:
                    self.assertIs(successor.wait_event("kv.opened")["read_only"], False)
                    expected = complete(successor, later)
                    stored = len(ids) // BLOCK + len(later) // BLOCK
                    self.wait_stored(second, stored)
                    answer = complete(second, later)
                    self.assertEqual(text_and_logprobs(answer), text_and_logprobs(expected))
                    self.assertGreater(by_tier(answer)["remote"], 0)
                    self.assertEqual(successor.stop(), 0)
                self.assertEqual(second.stop(), 0)
        folders = [path for path in self.dir.glob("v1/*/*-*") if path.is_dir()]
        self.assertEqual({path.name.rsplit("-", 1)[0] for path in folders}, {"local"})
        self.assertEqual(len(folders), 2, "the reader has no folder")

    def test_two_servers_share_a_folder(self):
        ids = prompt(1000, 32)
        with self.server("--kv-shared", "--kv-node", "one") as one, \
                self.server("--kv-shared", "--kv-node", "two") as two:
            before = complete(one, ids)
            deadline = time.monotonic() + 60
            # The second one hears of the blocks; asking again must not make it compute them all.
            while metric(two, "kv_index_entries") < len(ids) // BLOCK:
                self.assertLess(time.monotonic(), deadline, "the peer's blocks do not arrive")
                time.sleep(0.1)
            answer = complete(two, ids)
            self.assertEqual(text_and_logprobs(answer), text_and_logprobs(before))
            tiers = by_tier(answer)
            self.assertGreater(tiers["remote"], 0)
            self.assertEqual(tiers["disk"] + tiers["dram"], 0)

    def test_without_a_named_folder_a_store_in_use_is_done_without(self):
        home = {"XDG_CACHE_HOME": str(self.dir)}
        with Server(env=home) as first:
            folder = first.wait_event("kv.opened")["dir"]
            self.assertEqual(folder, str(self.dir / "deepinfer/kv"))
            with Server(env=home) as second:
                second.wait_event("kv.without_store")
                second.headers = {}
                complete(second, prompt(500, 31))
                self.assertEqual(metric(second, "kv_tier_state", state="off"), 1)

    def test_tenants_and_private_requests_stay_apart_over_restarts(self):
        keys = self.dir.parent / "keys.json"
        keys.write_text(json.dumps({"keys": [{"name": "a", "key": "secret-a"},
                                             {"name": "b", "key": "secret-b"}]}))
        as_a, as_b = ({"Authorization": "Bearer secret-" + name} for name in "ab")
        shared, private = prompt(1000, 40), prompt(1000, 41)
        with self.server("--api-key-file", keys) as server:
            complete(server, shared, headers=as_a)
            complete(server, private, headers=as_a, prompt_cache_retention="in_memory")
            self.assertEqual(server.stop(), 0)
        with self.server("--api-key-file", keys, headers=as_a,
                         stored=len(shared) // BLOCK) as server:
            self.assertEqual(by_tier(complete(server, shared, headers=as_b))["disk"], 0)
            self.assertGreater(by_tier(complete(server, shared, headers=as_a))["disk"], 0)
            self.assertEqual(by_tier(complete(server, private, headers=as_a))["disk"], 0)
            self.assertEqual(server.stop(), 0)
        erased = json.loads(run("kv", "erase", "--dir", self.dir, "--tenant", "a", "--yes",
                                "--json").stdout)
        self.assertGreater(erased["erased_blocks"], 0)
        with self.server("--api-key-file", keys) as server:
            self.assertEqual(by_tier(complete(server, shared, headers=as_a))["disk"], 0)
            self.assertGreater(by_tier(complete(server, shared, headers=as_b))["disk"], 0)

    def test_generate_shares_the_store_of_a_server_without_keys(self):
        ids = prompt(1000, 50)
        file = self.dir.parent / "ids.json"
        file.write_text(json.dumps(ids))
        args = ("generate", DEMO_MODEL, "--tokens", file, "--max-tokens", 8, "--ignore-eos")
        cold = run(*args)
        self.assertEqual(cold.returncode, 0, cold.stderr)
        with self.server() as server:
            complete(server, ids)
            self.assertEqual(server.stop(), 0)
        stored = run(*args, "--kv-dir", self.dir)
        self.assertEqual(stored.returncode, 0, stored.stderr)
        self.assertEqual(len(json.loads(stored.stdout)["ids"]), 8)
        in_use = run(*args, "--kv-dir", "/proc/none")
        self.assertEqual(in_use.returncode, 1)

    def test_blocks_of_a_tenant_with_a_key_are_encrypted_and_need_it_again(self):
        api_keys, kv_keys = self.dir.parent / "keys.json", self.dir.parent / "tenant.keys"
        api_keys.write_text(json.dumps({"keys": [{"name": "a", "key": "secret-a"},
                                                 {"name": "b", "key": "secret-b"}]}))
        as_a, as_b = ({"Authorization": "Bearer secret-" + name} for name in "ab")
        ids, num_blocks = prompt(1000, 70), 1000 // BLOCK

        def make_key(path):
            made = run("kv", "key", "--dir", self.dir, "--tenant", "a", "--key-file", path, "--json")
            self.assertEqual(made.returncode, 0, made.stderr)
            return json.loads(made.stdout)["tenant_tag"]

        def served(*flags, stored=0):
            return self.server("--api-key-file", api_keys, *flags, headers=as_a, stored=stored)

        tag = make_key(kv_keys)
        with served("--kv-key-file", kv_keys) as server:
            cold = complete(server, ids, headers=as_a)
            complete(server, ids, headers=as_b)
            self.assertEqual(server.stop(), 0)
        # The two tenants' blocks of one prompt are equal in memory; on disk one of each is not.
        flags, payloads = {}, {}
        for item in json.loads(run("kv", "ls", "--dir", self.dir, "--blocks", "--json").stdout)["items"]:
            owner = "a" if item["tenant_tag"] == tag else "b"
            with open(item["path"], "rb") as segment:
                segment.seek(item["page"] * 4096)
                record = segment.read(4096)
            flags[owner, item["block"]] = int.from_bytes(record[12:16], "little")
            payloads[owner, item["block"]] = record[256:]
        self.assertEqual(len(payloads), 2 * num_blocks)
        for block in range(num_blocks):
            self.assertEqual((flags["a", block] & 1, flags["b", block] & 1), (1, 0))
            self.assertNotEqual(payloads["a", block], payloads["b", block])

        with served("--kv-key-file", kv_keys, stored=2 * num_blocks) as server:
            warm = complete(server, ids, headers=as_a)
            self.assertGreater(by_tier(warm)["disk"], 0)
            self.assertEqual(text_and_logprobs(warm), text_and_logprobs(cold))
            self.assertEqual(server.stop(), 0)
        # Another key is as good as none: misses, and nothing is damaged.
        other_keys = self.dir.parent / "other.keys"
        make_key(other_keys)
        with served("--kv-key-file", other_keys, stored=2 * num_blocks) as server:
            missed = complete(server, ids, headers=as_a, prompt_cache_retention="in_memory")
            self.assertEqual(by_tier(missed)["disk"], 0)
            self.assertEqual(text_and_logprobs(missed), text_and_logprobs(cold))
            self.assertEqual(server.wait_event("kv.no_key_for_block")["tenant_tag"], tag)
            self.assertGreater(by_tier(complete(server, ids, headers=as_b))["disk"], 0)
            self.assertEqual(metric(server, "kv_corrupt_records_total"), 0)
            self.assertEqual(server.stop(), 0)
        with served("--kv-key-file", kv_keys, stored=2 * num_blocks) as server:
            self.assertGreater(by_tier(complete(server, ids, headers=as_a))["disk"], 0)
            self.assertEqual(server.stop(), 0)

    def test_a_key_file_that_is_not_there_is_an_error(self):
        missing = self.dir.parent / "no.keys"
        refused = subprocess.run([BINARY, "serve", str(DEMO_MODEL), "--port", "0", "--kv-dir",
                                  str(self.dir), "--kv-key-file", str(missing)],
                                 capture_output=True, text=True, timeout=support.TIMEOUT_S)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn(f"--kv-key-file {missing} is not there", refused.stderr)

    def test_a_write_budget_that_is_used_up_spares_the_disk_and_no_request(self):
        # What may be written at once is a twelfth of a day's: about four blocks.
        with self.server() as server:
            block_bytes = server.wait_event("kv.opened")["block_bytes"]
            self.assertEqual(server.stop(), 0)
        space_mb, budget_blocks = 1024, 4
        per_day = 12 * budget_blocks * block_bytes / (space_mb << 20)
        prompts = [prompt(10 * BLOCK, seed) for seed in range(80, 83)]
        with self.server("--kv-space-mb", space_mb, "--kv-writes-per-day", per_day) as server:
            for ids in prompts:
                first = complete(server, ids)
                self.assertEqual(text_and_logprobs(complete(server, ids)), text_and_logprobs(first))
                self.wait_metric(server, "kv_index_entries", budget_blocks)
            self.assertGreater(metric(server, "kv_dropped_writes_total", reason="write_budget"), 0)
            self.assertEqual(server.stop(), 0)
        stats = json.loads(run("kv", "stats", "--dir", self.dir, "--json").stdout)
        stored = stats["namespaces"][0]["blocks"]
        self.assertGreaterEqual(stored, budget_blocks)
        # The second offers of a block may overdraw the budget by half of it.
        self.assertLessEqual(stored, budget_blocks + budget_blocks // 2)


if __name__ == "__main__":
    unittest.main()
