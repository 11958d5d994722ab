"""Prefill and decode in processes of their own: the bits of one process, whoever is lost."""

import http.client
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import unittest

import cluster_support
import support
from cluster_support import Cluster, Stream, payload, wait_for

TWO_OF_EACH = ("--prefill", "2", "--decode", "2")


def total(cluster, what):
    return sum(worker["hand_offs"][what] for worker in cluster.status())


class DisaggregationTest(cluster_support.ClusterCase):
    def start(self, cluster, events):
        """Eight requests, of which every one has got so many events."""
        streams = [Stream(cluster.port, payload(i)) for i in range(8)]
        wait_for(lambda: all(s.events >= events or s.error for s in streams))
        return streams

    def lose(self, role, sign, events):
        with Cluster(*TWO_OF_EACH) as cluster:
            streams = self.start(cluster, events)
            workers = [w for w in cluster.status() if w["role"] == role]
            victim = max(workers, key=lambda w: w["running"])
            os.kill(victim["pid"], sign)
            self.check(streams)
            if sign == signal.SIGSTOP:
                os.kill(victim["pid"], signal.SIGCONT)
            wait_for(cluster.all_ready)
            self.check([Stream(cluster.port, payload(i)) for i in range(8)])
            self.expect_nothing_held(cluster)

    def test_equal_answers_over_shared_memory(self):
        with Cluster(*TWO_OF_EACH, "--worker-flag=--transport=shm") as cluster:
            self.check([Stream(cluster.port, payload(i)) for i in range(8)])
            self.expect_nothing_held(cluster)
            workers = cluster.status()
            self.assertEqual([w["role"] for w in workers],
                             ["prefill", "prefill", "decode", "decode"])
            self.assertEqual(total(cluster, "committed"), 8)
            self.assertEqual(total(cluster, "failed"), 0)
            self.assertEqual(total(cluster, "bytes_sent"), total(cluster, "bytes_received"))
            # A burst spreads. Prompts that wait for credit go to the worker that gets on faster.
            for worker in workers[:2]:
                self.assertGreaterEqual(worker["hand_offs"]["committed"], 2)
            for worker in workers[2:]:
                self.assertGreaterEqual(worker["hand_offs"]["tickets_granted"], 2)

    def test_ledgers_of_gateway_and_workers_add_up(self):
        with tempfile.TemporaryDirectory() as folder:
            with Cluster("--prefill", "1", "--decode", "1", "--gateway-flag=--ledger=" + folder,
                         "--worker-flag=--ledger=" + folder) as cluster:
                self.check([Stream(cluster.port, payload(i)) for i in range(8)])
                self.expect_nothing_held(cluster)
                moved = total(cluster, "bytes_received")
            lines = [json.loads(line) for path in pathlib.Path(folder).glob("ledger-*.jsonl")
                     for line in path.read_text(encoding="utf-8").splitlines()]
            requests = [line for line in lines if line["schema"] == "deepinfer.ledger.v1"]
            overhead = [line for line in lines if line["schema"] == "deepinfer.overhead.v1"]
            self.assertEqual(len(requests), 8)
            net = [line["resource"]["net_bytes"] for line in requests]
            self.assertGreater(moved, 0)
            self.assertEqual(sum(n["handoff"] for n in net), moved)
            for n in net:
                self.assertGreater(n["control"], 1000)
            self.assertEqual(sorted({line["scope"]["role"] for line in overhead}),
                             ["decode", "prefill"])
            wall = sum(line["time_ns"]["to"] - line["time_ns"]["from"] for line in overhead
                       if line["kind"] != "probe")
            spent = sum(sum(v or 0 for v in line["resource"]["device_ns"].values())
                        for line in requests)
            self.assertEqual(spent + sum(line["device_ns"] for line in overhead), wall)
            done = support.run("ledger", "check", folder)
            self.assertEqual(done.returncode, 0, done.stdout)

    def test_equal_answers_by_ucx_also_when_a_worker_dies(self):
        refused = support.run("worker", support.DEMO_MODEL, "--transport", "ucx",
                              "--ucx-transports", "carrier_pigeon")
        self.assertNotEqual(refused.returncode, 0)
        if b"has no UCX" in refused.stderr:
            self.skipTest("this build has no UCX")
        self.assertIn(b"carrier_pigeon", refused.stderr)
        for transports in ("tcp", "shm"):
            with Cluster(*TWO_OF_EACH, "--worker-flag=--transport=ucx",
                         "--worker-flag=--ucx-transports=" + transports) as cluster:
                self.check([Stream(cluster.port, payload(i)) for i in range(8)])
                self.assertGreater(total(cluster, "bytes_by_ucx"), 0)
                self.assertEqual(total(cluster, "bytes_by_ucx"), total(cluster, "bytes_received"))
                self.assertEqual(total(cluster, "failed"), 0)
                self.expect_nothing_held(cluster)
                for role in ("decode", "prefill"):
                    streams = self.start(cluster, events=1)
                    victim = max((w for w in cluster.status() if w["role"] == role),
                                 key=lambda w: w["running"])
                    os.kill(victim["pid"], signal.SIGKILL)
                    self.check(streams)
                    wait_for(cluster.all_ready)
                self.expect_nothing_held(cluster)

    def test_equal_answers_of_every_kind(self):
        with Cluster("--prefill", "1", "--decode", "1") as cluster:
            for request, want in zip(cluster_support.WHOLE, self.want_whole):
                self.assertEqual(cluster_support.ask(cluster.port, *request), want, request)
            self.assertEqual(total(cluster, "committed"), 5)
            self.assertEqual(total(cluster, "failed"), 0)
            self.expect_nothing_held(cluster)

    def test_a_worker_changes_its_role_under_load(self):
        with Cluster("--prefill", "1", "--decode", "2") as cluster:
            streams = self.start(cluster, events=2)
            done = support.run("cluster", "role", "decode-1", "prefill", "--dir",
                               cluster.folder.name)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.check(streams)
            self.assertEqual([w["role"] for w in cluster.status()],
                             ["prefill", "decode", "prefill"])
            self.check([Stream(cluster.port, payload(i)) for i in range(8)])
            sent = [w["hand_offs"]["committed"] for w in cluster.status()]
            self.assertEqual([sent[1], sent[2] > 0], [0, True], "it runs prompts now")
            top = support.run("cluster", "top", "--rounds", "1", "--dir", cluster.folder.name)
            self.assertRegex(top.stdout.decode(), r"(?m)^decode-1 +prefill +\d+ ")

    def test_equal_answers_between_processes_with_certificates(self):
        with Cluster("--prefill", "1", "--decode", "1", "--worker-flag=--transport=tcp",
                     tls=True) as cluster:
            self.check([Stream(cluster.port, payload(i)) for i in range(4)])
            self.assertEqual(total(cluster, "committed"), 4)
            stranger = support.run("cluster", "status", "--json", "--dir", cluster.folder.name)
            self.assertEqual([w["ready"] for w in json.loads(stranger.stdout)["workers"]],
                             [False, False])

    def test_equal_answers_from_half_of_the_weights(self):
        for profile in ("encoder", "tail"):
            with self.subTest(profile), Cluster(
                    "--prefill", "1", "--decode", "1", "--prefill-flag=--layers=encoder",
                    "--prefill-flag=--hand-off=" + profile) as cluster:
                self.check([Stream(cluster.port, payload(i)) for i in range(8)])
                for request, want in zip(cluster_support.WHOLE, self.want_whole):
                    self.assertEqual(cluster_support.ask(cluster.port, *request), want, request)
                self.assertEqual(total(cluster, "failed"), 0)
                self.assertEqual(total(cluster, "committed"), 13)
                self.expect_nothing_held(cluster)
                mapped = [self.mapped_bytes(cluster, w) for w in ("prefill-0", "decode-0")]
                self.assertLess(mapped[0], 0.7 * mapped[1])
                # Who has no decoder cannot stand in: they wait for the other to come back.
                streams = self.start(cluster, events=4)
                os.kill(cluster.pid_of("decode-0"), signal.SIGKILL)
                self.check(streams)

    @staticmethod
    def mapped_bytes(cluster, worker):
        """Of the weights, those in memory."""
        size, of_weights = 0, False
        for line in open("/proc/%d/smaps" % cluster.pid_of(worker)):
            fields = line.split()
            if not fields[0].endswith(":"):
                of_weights = line.rstrip().endswith(".safetensors")
            elif of_weights and fields[0] == "Rss:":
                size += int(fields[1]) * 1024
        return size

    def test_equal_answers_through_a_shared_cache(self):
        with tempfile.TemporaryDirectory() as folder, Cluster(
                "--prefill", "2", "--decode", "2", "--kv-dir", folder, "--worker-flag=--replay=exact",
                "--worker-flag=--kv-group-commit-ms=50",
                "--prefill-flag=--hand-off=store") as cluster:
            self.check([Stream(cluster.port, payload(i)) for i in range(8)])
            for request, want in zip(cluster_support.WHOLE, self.want_whole):
                self.assertEqual(cluster_support.ask(cluster.port, *request), want, request)
            self.assertEqual(total(cluster, "failed"), 0)
            self.assertEqual(total(cluster, "committed"), 13)
            self.assertEqual(total(cluster, "bytes_received"), 0, "only tokens moved")
            self.expect_nothing_held(cluster)
            # Whoever is lost, the others find what it stored.
            streams = self.start(cluster, events=4)
            os.kill(cluster.pid_of("decode-0"), signal.SIGKILL)
            os.kill(cluster.pid_of("prefill-0"), signal.SIGKILL)
            self.check(streams)

    def test_equal_answers_over_tcp(self):
        with Cluster("--prefill", "1", "--decode", "2", "--worker-flag=--transport=tcp") as cluster:
            self.check([Stream(cluster.port, payload(i)) for i in range(8)])
            self.expect_nothing_held(cluster)
            self.assertEqual(total(cluster, "committed"), 8)

    def test_a_killed_decode_worker_is_not_seen_by_its_clients(self):
        self.lose("decode", signal.SIGKILL, events=4)

    def test_a_killed_prefill_worker_is_not_seen_by_its_clients(self):
        self.lose("prefill", signal.SIGKILL, events=0)

    def test_a_decode_worker_that_hangs_is_replaced(self):
        self.lose("decode", signal.SIGSTOP, events=4)

    def test_a_prefill_worker_that_hangs_is_replaced(self):
        self.lose("prefill", signal.SIGSTOP, events=0)

    def test_all_workers_are_replaced_under_load(self):
        # Nobody waits any more for what was asked of an earlier cluster in the folder.
        with Cluster("--prefill", "1", "--decode", "1", "--worker-flag=--revision=one",
                     files={"restart": "left\n"}) as cluster:
            before = [w["pid"] for w in cluster.status()]
            streams = self.start(cluster, events=1)
            done = support.run("cluster", "restart", "--dir", cluster.folder.name, "--revision",
                               "two")
            self.assertEqual(done.returncode, 0, done.stderr)
            # Until the gateway reaches both, the prefill worker may answer alone.
            wait_for(cluster.all_ready)
            streams_after = [Stream(cluster.port, payload(i)) for i in range(8)]
            self.check(streams)
            self.check(streams_after)
            self.assertEqual([w["name"] for w in cluster.status()], ["prefill-0", "decode-0"])
            self.assertFalse(set(before) & {w["pid"] for w in cluster.status()})
            # Both revisions ran beside each other and never met.
            self.assertNotIn("differ", cluster.logs())
            self.assertGreater(total(cluster, "committed"), 0)
            self.expect_nothing_held(cluster)
            done = support.run("cluster", "status", "--dir", cluster.folder.name, "--json")
            self.assertEqual({w["revision"] for w in json.loads(done.stdout)["workers"]}, {"two"})

    def test_any_order_of_faults_is_not_seen_by_clients(self):
        seed = int(os.environ.get("CLUSTER_WALK_SEED", "0")) or random.randrange(1, 10 ** 6)
        rounds = int(os.environ.get("CLUSTER_WALK_ROUNDS", "8"))
        print("seed %d, %d rounds" % (seed, rounds), file=sys.stderr)
        draw = random.Random(seed)
        with Cluster(*TWO_OF_EACH, "--registry", "dev") as cluster:
            for _ in range(rounds):
                streams = [Stream(cluster.port, payload(i)) for i in range(8)]
                leaver = self.leave(cluster, draw.randrange(8))
                reached = draw.choice([0, 0, 1, 8, 40])
                wait_for(lambda: all(s.events >= reached or s.error for s in streams))
                fault = draw.choice(["kill", "kill", "stop", "drop client", "registry"])
                victim = draw.choice(["prefill-0", "prefill-1", "decode-0", "decode-1"])
                if fault == "registry":
                    victim, fault = "registry", "kill"
                with self.subTest(seed=seed, fault=fault, victim=victim, reached=reached):
                    pid = cluster.pid_of(victim)
                    if fault == "kill" and pid:
                        os.kill(pid, signal.SIGKILL)
                    elif fault == "stop" and pid:
                        os.kill(pid, signal.SIGSTOP)
                    leaver.close()
                    self.check(streams)
                    if fault == "stop" and pid:
                        os.kill(pid, signal.SIGCONT)
            wait_for(cluster.all_ready)
            self.expect_nothing_held(cluster)

    @staticmethod
    def leave(cluster, i):
        """The socket of a client that will not read its answer."""
        connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(payload(i)),
                           {"Content-Type": "application/json"})
        return connection.sock

    def test_one_kind_serves_alone(self):
        with Cluster("--decode", "1") as cluster:
            self.check([Stream(cluster.port, payload(i)) for i in range(2)])

    def test_clients_that_leave_free_both_sides(self):
        with Cluster(*TWO_OF_EACH) as cluster:
            for i in range(8):
                connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=60)
                connection.request("POST", "/v1/completions", json.dumps(payload(i)),
                                   {"Content-Type": "application/json"})
                if i % 2:
                    connection.getresponse().readline()
                connection.sock.close()
                connection.close()
            self.expect_nothing_held(cluster)


if __name__ == "__main__":
    unittest.main()
