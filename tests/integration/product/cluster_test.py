"""A cluster of real processes: answers equal those of one process, also when a worker is killed."""

import http.client
import json
import os
import pathlib
import signal
import tempfile
import unittest

import cluster_support
import support
from cluster_support import Cluster, Etcd, Gateway, Stream, alive, metric, payload, wait_for


class ClusterTest(cluster_support.ClusterCase):
    def test_equal_answers_and_a_clean_end(self):
        with Cluster("--workers", "2") as cluster:
            streams = [Stream(cluster.port, payload(i)) for i in range(8)]
            self.check(streams)
            self.expect_nothing_held(cluster)
            workers = cluster.status()
            self.assertEqual([w["role"] for w in workers], ["all", "all"])
            for worker in workers:
                self.assertGreater(worker["device_seconds"], 0)
                self.assertGreaterEqual(worker["step_prediction_error"], 0)
            self.assertTrue(1 <= cluster.busiest()["all"] <= 2)
            # By now the workers have told what their steps cost.
            self.check([Stream(cluster.port, payload(i)) for i in range(8)])
            for name in ("ttft", "tpot"):
                self.assertGreater(
                    metric(cluster.port, "gateway_%s_forecast_error_count" % name), 0)
            self.assertGreaterEqual(
                metric(cluster.port, "gateway_busiest_worker_ratio", 'of="all"'), 1)
            self.assertEqual([w["pid"] for w in workers],
                             [cluster.pids["worker-0"], cluster.pids["worker-1"]])
            self.assertEqual(cluster.stop(), 0)
            for pid in cluster.pids.values():
                self.assertFalse(alive(pid))

    def test_E08_a_killed_worker_is_not_seen_by_its_clients(self):
        with Cluster("--workers", "2") as cluster:
            streams = [Stream(cluster.port, payload(i)) for i in range(8)]
            wait_for(lambda: all(s.events >= 4 for s in streams))
            busy = max(cluster.status(), key=lambda w: w["running"])
            os.kill(busy["pid"], signal.SIGKILL)
            self.check(streams)
            self.assertIn("request.lost_worker", cluster.logs("gateway"))
            # It is started again and takes its part.
            wait_for(cluster.all_ready)
            self.assertNotIn(busy["pid"], [w["pid"] for w in cluster.status()])
            self.check([Stream(cluster.port, payload(i)) for i in range(8)])
            self.expect_nothing_held(cluster)

    def test_a_worker_that_hangs_is_replaced(self):
        with Cluster("--workers", "2") as cluster:
            streams = [Stream(cluster.port, payload(i)) for i in range(4)]
            wait_for(lambda: all(s.events >= 4 for s in streams))
            busy = max(cluster.status(), key=lambda w: w["running"])
            os.kill(busy["pid"], signal.SIGSTOP)
            self.check(streams)
            os.kill(busy["pid"], signal.SIGCONT)
            wait_for(cluster.all_ready)
            self.expect_nothing_held(cluster)

    def test_a_drained_worker_leaves_without_a_failed_request(self):
        with Cluster("--workers", "2") as cluster:
            streams = [Stream(cluster.port, payload(i)) for i in range(8)]
            wait_for(lambda: all(s.events >= 4 for s in streams))
            done = support.run("cluster", "drain", "worker-0", "--dir", cluster.folder.name,
                               "--within", "0.1")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.check(streams)
            wait_for(lambda: not alive(cluster.pids["worker-0"]))
            self.check([Stream(cluster.port, payload(i)) for i in range(2)])

    def test_workers_are_found_in_etcd_and_served_without_it(self):
        with Etcd() as etcd, Cluster("--workers", "2", "--registry", etcd.endpoint) as cluster:
            self.check([Stream(cluster.port, payload(i)) for i in range(8)])
            etcd.kill()
            # Nobody needs it: not for new requests, nor for those of a lost worker.
            streams = [Stream(cluster.port, payload(i)) for i in range(8)]
            wait_for(lambda: all(s.events >= 4 for s in streams))
            busy = max(cluster.status(), key=lambda w: w["running"])
            os.kill(busy["pid"], signal.SIGKILL)
            self.check(streams)
            self.expect_nothing_held(cluster)

    def test_the_registry_of_a_cluster_may_be_killed(self):
        with Cluster("--workers", "2", "--registry", "dev") as cluster:
            self.check([Stream(cluster.port, payload(i)) for i in range(8)])
            os.kill(cluster.pids["registry"], signal.SIGKILL)
            self.check([Stream(cluster.port, payload(i)) for i in range(8)])
            # The new one is told again.
            wait_for(lambda: all("lease_lost" in cluster.logs("worker-%d" % i) for i in (0, 1)))
            self.check([Stream(cluster.port, payload(i)) for i in range(2)])

    def test_another_gateway_goes_on_with_the_runs_of_a_killed_one(self):
        def ask(port):
            return [Stream(port, dict(payload(i), max_tokens=500), key="k%d" % i) for i in range(4)]
        with Cluster("--workers", "2") as cluster, Gateway(cluster) as other:
            lost = ask(cluster.port)
            wait_for(lambda: all(s.events >= 8 for s in lost))
            os.kill(cluster.pids["gateway"], signal.SIGKILL)
            for stream in lost:
                stream.join()
            # A gateway asks workers only once they have told of orphans.
            wait_for(lambda: metric(other.port, "gateway_orphans") == 4)
            again = ask(other.port)
            for stream in again:
                stream.join()
                self.assertIsNone(stream.error)
            self.expect_nothing_held(cluster)
            self.assertEqual(cluster.logs("worker-*").count("run.adopted"), 4)
            # What was told before the loss is told again, and it is the answer of anybody.
            for stream, first in zip(again, lost):
                self.assertEqual(stream.usage["completion_tokens"], 500)
                self.assertTrue(stream.text.startswith(first.text))
            whole = ask(other.port)
            for stream, want in zip(whole, again):
                stream.join()
                self.assertEqual(stream.text, want.text)
            self.assertEqual(cluster.logs("worker-*").count("run.adopted"), 4)

    def test_a_restart_is_refused_where_nobody_looks_after_the_cluster(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "cluster.json").write_text("[]\n")
            done = support.run("cluster", "restart", "--dir", folder)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(b"looks after", done.stderr)
            self.assertEqual(os.listdir(folder), ["cluster.json"])

    def test_a_restart_whose_new_workers_do_not_start_changes_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder, support.DEMO_MODEL.name)
            model.symlink_to(support.DEMO_MODEL)
            with Cluster("--workers", "1", model=model) as cluster:
                model.unlink()
                done = support.run("cluster", "restart", "--dir", cluster.folder.name)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(b"do not become ready", done.stderr)
                wait_for(lambda: [(w["name"], w["pid"]) for w in cluster.status()] ==
                         [("worker-0", cluster.pids["worker-0"])])
                self.check([Stream(cluster.port, payload(i)) for i in range(2)])

    def test_a_restart_kills_an_old_worker_that_hangs(self):
        with Cluster("--workers", "1", "--leave-limit", "1") as cluster:
            old = cluster.pids["worker-0"]
            os.kill(old, signal.SIGSTOP)
            done = support.run("cluster", "restart", "--dir", cluster.folder.name)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertFalse(alive(old))
            self.check([Stream(cluster.port, payload(i)) for i in range(2)])
            self.expect_nothing_held(cluster)

    def test_E11_clients_that_leave_free_their_workers(self):
        with Cluster("--workers", "2") as cluster:
            for i in range(6):
                connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=60)
                connection.request("POST", "/v1/completions", json.dumps(payload(i)),
                                   {"Content-Type": "application/json"})
                connection.getresponse().readline()
                connection.sock.close()
                connection.close()
            self.expect_nothing_held(cluster)


if __name__ == "__main__":
    unittest.main()
