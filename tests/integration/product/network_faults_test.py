"""Faults of the network, the disk and the clock under requests that run on real processes: the
answer is that of one process, the clients see no error, and nothing is held afterwards.

With --all before the binary every row runs, else those that find most.
"""

import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ALL = "--all" in sys.argv
if ALL:
    sys.argv.remove("--all")

# pylint: disable=wrong-import-position
import cluster_support
import fault_matrix_test as matrix
import support
from cluster_support import Cluster, wait_for
from faulty_network import TO_PEER, TO_WORKER, FarGateway

# When (as in fault_matrix_test), the role of the victim, the fault, seconds until every client has
# its answer, in the short form.
ROWS = [
    ("decode", "decode", "partition", 20, True),
    ("decode", "decode", "mute", 20, False),      # nothing comes from it
    ("decode", "decode", "deaf", 20, False),      # nothing reaches it
    ("decode", "decode", "reset", 20, True),
    ("decode", "decode", "delay", 40, False),
    ("prefill", "prefill", "partition", 20, False),
    ("prefill", "prefill", "mute", 20, False),
    ("prefill", "prefill", "reset", 20, False),
    ("prefill", "decode", "pair", 30, False),     # prefill workers do not reach decode workers
    ("decode", "prefill", "reset", 20, False),
]
CLOCK_SHIFT = pathlib.Path(support.BINARY).parents[2] / \
    "tests/integration/product/libclock_shift.so"


class NetworkFaultsTest(matrix.FaultMatrixTest):
    test_every_fault_in_every_state = None  # of the other file

    def strike_network(self, gateway, victim, fault):
        proxy = gateway.proxies[victim]
        lost = gateway.count("worker.lost")
        if fault == "partition":
            proxy.hold(TO_WORKER, TO_PEER)
        elif fault == "mute":
            proxy.hold(TO_PEER)
        elif fault == "deaf":
            proxy.hold(TO_WORKER)
        elif fault == "reset":
            proxy.reset()
        elif fault == "delay":
            proxy.delay_s = 1.0
        elif fault == "pair":  # the first connection of each is that of the gateway
            for name, other in gateway.proxies.items():
                if name.startswith("decode"):
                    other.hold(TO_WORKER, TO_PEER, first=1)
        begin = time.monotonic()
        if fault in ("partition", "mute", "reset"):
            gateway.wait(lambda: gateway.count("worker.lost") > lost)
            self.assertLess(time.monotonic() - begin, 4)
        else:
            time.sleep(3)
        for other in gateway.proxies.values():
            other.release()
            other.delay_s = 0.0

    def network_row(self, cluster, gateway, row, want):
        state, role, fault, bound_s, _ = row
        before = self.listed(cluster)
        clients = matrix.ask_all(gateway.port, "network")
        self.reach(cluster, state, clients)
        under_way = sum(c.answer is None for c in clients)
        begin = time.monotonic()
        self.strike_network(gateway, self.victims(cluster, role)[0], fault)
        for i, client in enumerate(clients):
            client.join()
            self.assertIsNone(client.error, "request %d" % i)
            self.assertEqual(client.answer, want[i], "request %d" % i)
            self.assertEqual(client.attempts, 1, "request %d" % i)
        took_s = time.monotonic() - begin
        self.assertLess(took_s, bound_s)
        self.assertGreater(under_way, 0)
        self.assertEqual(self.listed(cluster), before)
        self.expect_nothing_held(cluster)
        return took_s

    def test_every_fault_of_the_network(self):
        rows = [row for row in ROWS if ALL or row[4]]
        want = self.wanted(["network"])["network"]
        with self.cluster() as cluster, FarGateway(cluster) as gateway:
            for row in rows:
                with self.subTest("-".join(row[:3])):
                    took_s = self.network_row(cluster, gateway, row, want)
                    print("%-28s %5.1f s" % ("-".join(row[:3]), took_s), file=sys.stderr)

    # The calendar of all processes goes an hour ahead and two back while requests run.
    def test_a_clock_that_jumps_disturbs_nobody(self):
        want = self.wanted(["clock"])["clock"]
        with tempfile.NamedTemporaryFile() as shift:
            shift.write(struct.pack("<q", 0))
            shift.flush()
            os.environ.update(LD_PRELOAD=str(CLOCK_SHIFT), CLOCK_SHIFT_FILE=shift.name)
            try:
                cluster = self.cluster()
            finally:
                del os.environ["LD_PRELOAD"], os.environ["CLOCK_SHIFT_FILE"]
            with cluster:
                self.assertIn("clock_shift", pathlib.Path(
                    "/proc/%d/maps" % cluster.pid_of("gateway")).read_text())
                clients = matrix.ask_all(cluster.port, "clock")
                for jump_s in (3600, -3600):
                    self.reach(cluster, "first", clients)
                    shift.seek(0)
                    shift.write(struct.pack("<q", jump_s))
                    shift.flush()
                clients += matrix.ask_all(cluster.port, "clock")
                for i, client in enumerate(clients):
                    client.join()
                    self.assertIsNone(client.error, "request %d" % i)
                    self.assertEqual(client.answer, want[i % len(want)], "request %d" % i)
                self.assertEqual(cluster.logs("gateway").count("worker.lost"), 0)
                self.expect_nothing_held(cluster)

    # The folder of the persistent cache fills up while requests run.
    @unittest.skipUnless(ALL, "takes half a minute")
    def test_a_full_disk_costs_no_answer(self):
        want = self.wanted(["disk"])["disk"]
        with tempfile.TemporaryDirectory() as folder:
            mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600m", "tmpfs", folder],
                                     capture_output=True)
            if mounted.returncode != 0:
                self.skipTest("no right to mount")
            try:
                self.fill_disk_under_load(folder, want)
            finally:
                subprocess.run(["umount", "-l", folder], check=True)

    def fill_disk_under_load(self, folder, want):
        with Cluster("--prefill", "2", "--decode", "2", "--kv-dir", folder,
                     "--worker-flag=--replay=exact") as cluster:
            clients = matrix.ask_all(cluster.port, "disk")
            self.reach(cluster, "first", clients)
            filler = open(os.path.join(folder, "filler"), "wb")
            try:
                while True:
                    filler.write(bytes(1 << 20))
                    filler.flush()
            except OSError:
                pass
            clients += matrix.ask_all(cluster.port, "disk")
            for i, client in enumerate(clients):
                client.join()
                self.assertIsNone(client.error, "request %d" % i)
                self.assertEqual(client.answer, want[i % len(want)], "request %d" % i)
            self.assertEqual(cluster.logs("gateway").count("worker.lost"), 0)
            self.expect_nothing_held(cluster)


if __name__ == "__main__":
    unittest.main()
