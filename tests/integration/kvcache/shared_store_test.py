"""Several processes on one store: what they see of each other, and what happens when one is killed,
stopped or revived.

    python3 shared_store_test.py [--glusterfs] [--stall-seconds N] BINARY

BINARY is kvcache_store_node. With --glusterfs every process has a mount of its own of a GlusterFS
volume, and the volume's only brick stands still for a while; ends with status 77, which ctest reads
as skipped, where that cannot be had."""

import argparse
import random
import signal
import sys
import threading
import time

from store_nodes import GlusterVolume, LocalFolder, Node, Unavailable, until

SKIPPED = 77
# Leases short enough for a test, and long enough that a busy machine kills nobody. What the numbers
# are is for unit tests and a fake clock.
FAST = {"lease_renew_ms": 300, "lease_dead_ms": 6000, "lease_watch_ms": 3000, "scan_ms": 300}
# Where nobody dies.
LASTING = {"lease_dead_ms": 600_000}
CHAIN = 9


class Cluster:
    """Processes on a store of their own."""

    def __init__(self, binary, shared, name):
        self.binary = binary
        self.shared = shared
        self.name = name
        self.nodes = []

    def start(self, index, name, **options):
        node = Node(self.binary, self.shared.folder(index, self.name), name, **{**FAST, **options})
        self.nodes.append(node)
        return node

    def close(self):
        for node in self.nodes:
            node.close()


def check_visibility(cluster):
    """A second process finds what the first has committed."""
    a, b = cluster.start(0, "a", **LASTING), cluster.start(1, "b", **LASTING)
    b.wait(0, 1, 1)
    delays = []
    for chain in range(1, 41):
        committed, at = a.publish(chain, CHAIN)
        assert committed == CHAIN
        found, seen = b.wait(chain, CHAIN)
        assert found == CHAIN
        delays.append((seen - at) / 1000)
        loaded, _, _ = b.load(chain, CHAIN)
        assert loaded == CHAIN
    delays.sort()
    print(f"visible to a second process after {delays[len(delays) // 2]:.0f} ms (median), "
          f"{delays[-1]:.0f} ms (largest of {len(delays)})")
    assert a.stop() == 0 and b.stop() == 0


def check_kill_while_writing(cluster, rng):
    """Killed while it writes: everything it had committed is served, before and after a peer takes
    its folder over."""
    b = cluster.start(1, "b")
    known = []
    next_chain = 1000
    for round_number in range(4):
        a = cluster.start(0, f"a{round_number}")
        for _ in range(rng.randint(1, 5)):
            committed, _ = a.publish(next_chain, CHAIN)
            assert committed == CHAIN
            known.append(next_chain)
            next_chain += 1
        a.send("publish", next_chain, 200)  # dies somewhere in here
        time.sleep(rng.uniform(0, 0.15))
        a.kill()
        torn = next_chain
        next_chain += 1
        for chain in known:
            assert b.wait(chain, CHAIN)[0] == CHAIN
            assert b.load(chain, CHAIN)[0] == CHAIN, chain
        until(lambda: b.stats()["adopted"] == round_number + 1, 60, "adoption")
        for chain in known:
            assert b.load(chain, CHAIN)[0] == CHAIN, chain
        b.load(torn, 200)
    stats = b.stats()
    assert stats["corrupt"] == 0, stats
    assert b.stop() == 0
    c = cluster.start(0, "c")
    for chain in known:
        assert c.wait(chain, CHAIN)[0] == CHAIN
        assert c.load(chain, CHAIN)[0] == CHAIN
    assert c.stop() == 0


def check_adoption_race(cluster):
    """Two processes see the same owner die: one of them gets its folder, both serve it."""
    a, b, c = cluster.start(0, "a"), cluster.start(1, "b"), cluster.start(0, "c")
    a.publish(2000, CHAIN)
    for node in (b, c):
        assert node.wait(2000, CHAIN)[0] == CHAIN
    a.kill()
    until(lambda: b.stats()["adopted"] + c.stats()["adopted"] > 0, 60, "adoption")
    time.sleep(2)
    assert b.stats()["adopted"] + c.stats()["adopted"] == 1
    for node in (b, c):
        assert node.wait(2000, CHAIN)[0] == CHAIN
        assert node.load(2000, CHAIN)[0] == CHAIN
    assert b.stop() == 0 and c.stop() == 0


def check_revival(cluster):
    """Stopped for so long that a peer took its folder, then woken up: it goes on in a new one."""
    a, b = cluster.start(0, "a"), cluster.start(1, "b")
    a.publish(3000, CHAIN)
    assert b.wait(3000, CHAIN)[0] == CHAIN
    a.send("queue", 3001, 50)
    a.receive()
    a.signal(signal.SIGSTOP)
    until(lambda: b.stats()["adopted"] == 1, 60, "adoption")
    a.signal(signal.SIGCONT)
    until(lambda: a.ask("queue", 3002, CHAIN) == ["queued"] and a.stats()["fenced"] == 1, 30,
          "the owner notices")
    until(lambda: a.publish(3003, CHAIN)[0] == CHAIN, 30, "writing in a new folder")
    for node in (a, b):
        for chain in (3000, 3003):
            # The revived one finds its old blocks again when it has seen the folder's new name.
            until(lambda: node.load(chain, CHAIN)[0] == CHAIN, 30, (node.name, chain))
        node.load(3001, 50)
        assert node.stats()["corrupt"] == 0
    assert a.stop() == 0 and b.stop() == 0


def check_erasure(cluster):
    """Erased by one process, not served by any, also after a restart of all."""
    a, b = cluster.start(0, "a", **LASTING), cluster.start(1, "b", **LASTING)
    for chain in (4000, 4001):
        a.publish(chain, CHAIN)
        assert b.wait(chain, CHAIN)[0] == CHAIN
    b.ask("erase", 4000, CHAIN)
    until(lambda: a.load(4000, CHAIN)[0] == 0, 30, "erasure at the owner")
    assert b.load(4000, CHAIN)[0] == 0
    a.kill()
    b.kill()
    c = cluster.start(1, "c", **LASTING)
    assert c.wait(4001, CHAIN)[0] == CHAIN
    until(lambda: c.load(4000, CHAIN)[0] == 0, 30, "erasure after a restart")
    assert c.load(4001, CHAIN)[0] == CHAIN
    assert c.stop() == 0


def check_stall(cluster, stall, seconds):
    """The file system stands still: every request ends at its deadline with what it has, the breaker
    opens, nothing is left behind, and all is served again afterwards."""
    a, b = cluster.start(0, "a", **LASTING), cluster.start(1, "b", **LASTING)
    for chain in range(5000, 5040):
        a.publish(chain, CHAIN)
        assert b.wait(chain, CHAIN)[0] == CHAIN
    stall(True)
    timer = threading.Timer(seconds, stall, (False,))
    timer.start()
    try:
        begin = time.monotonic()
        worst_ms = 0
        requests = 0
        states = set()
        chain = 5000
        while time.monotonic() - begin < seconds - 1:
            _, elapsed_ms, _ = b.load(chain, CHAIN, 500)
            worst_ms = max(worst_ms, elapsed_ms)
            requests += 1
            chain = 5000 + (chain + 1) % 40
            states.add(b.stats()["tier_state"].split(":")[0])
            assert a.ask("queue", 6000 + requests, 2) == ["queued"]
            time.sleep(0.05)
    finally:
        timer.join()
    print(f"stalled for {seconds} s: {requests} requests, the slowest took {worst_ms} ms of the "
          f"500 ms it had, states {sorted(states)}")
    assert "off" in states, states
    until(lambda: b.load(5000, CHAIN)[0] == CHAIN, 400, "reading again")
    until(lambda: b.stats()["reads_in_flight"] == 0, 60, "outstanding reads")
    for chain in range(5000, 5040):
        assert b.load(chain, CHAIN)[0] == CHAIN
    assert b.stats()["corrupt"] == 0
    until(lambda: a.publish(7000, CHAIN)[0] == CHAIN, 60, "writing again")
    assert a.stop() == 0 and b.stop() == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--glusterfs", action="store_true")
    parser.add_argument("--stall-seconds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("binary")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    rng = random.Random(arguments.seed)
    try:
        shared = GlusterVolume(2) if arguments.glusterfs else LocalFolder()
    except Unavailable as reason:
        print(f"skipped: {reason}")
        return SKIPPED
    checks = [(check_visibility,), (check_kill_while_writing, rng), (check_adoption_race,),
              (check_revival,), (check_erasure,)]
    if arguments.glusterfs:
        checks.append((check_stall, shared.stall, arguments.stall_seconds))
    try:
        for check, *more in checks:
            cluster = Cluster(arguments.binary, shared, check.__name__)
            try:
                begin = time.monotonic()
                check(cluster, *more)
                print(f"{check.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
            finally:
                cluster.close()
    finally:
        shared.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
