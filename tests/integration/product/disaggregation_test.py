"""Prefill and decode in processes of their own: the bits of one process, whoever is lost."""

import http.client
import json
import os
import signal
import unittest

import cluster_support
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
            # A burst of equal requests spreads.
            self.assertEqual([w["hand_offs"]["committed"] for w in workers[:2]], [4, 4])
            self.assertEqual([w["hand_offs"]["tickets_granted"] for w in workers[2:]], [4, 4])

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
