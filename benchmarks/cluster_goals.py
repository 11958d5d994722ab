#!/usr/bin/env python3
"""What a cluster of real processes on this machine reaches of its goals (docs/benchmarks.md §12).

  benchmarks/cluster_goals.py BINARY [--only crash,drain] [--rounds 3] [--aborts 200] [--json FILE]

Every measurement starts a cluster of its own with the bundled model, one compute thread a worker,
under the load of a few streams whose answers are compared with those of one process. Prints a
Markdown table: what was measured, the bound, the worst of the rounds.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/integration/product"))


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--only", default="", help="names of measurements, comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--aborts", type=int, default=200)
    parser.add_argument("--storm", type=float, default=120, help="seconds of aborts")
    parser.add_argument("--outage", type=float, default=30, help="seconds without a registry")
    parser.add_argument("--json", default="")
    return parser.parse_args()


OPTIONS = parse()
sys.argv = [sys.argv[0], OPTIONS.binary]

# pylint: disable=wrong-import-position
import cluster_support
import support
from cluster_support import Cluster, Stream, payload, wait_for

DEBUG_LOG = ("--gateway-flag=--log-format=json", "--gateway-flag=--log-level=debug")
TWO_OF_EACH = ("--prefill", "2", "--decode", "2", *DEBUG_LOG)
STREAMS = 6


class TimedStream(Stream):
    """Notes when each event came."""

    def __init__(self, port, body):
        self.times = []
        self.begin = time.time()
        super().__init__(port, body)

    @property
    def events(self):
        return self._events

    @events.setter
    def events(self, value):
        self._events = value
        if value:
            self.times.append(time.time())

    def longest_gap(self):
        return max(b - a for a, b in zip(self.times, self.times[1:]))


def start(port, count=STREAMS):
    return [TimedStream(port, payload(i)) for i in range(count)]


def wanted(count=STREAMS):
    with support.Server("--threads", "1") as server:
        streams = start(server.port, count)
        for stream in streams:
            stream.join()
        return [(s.text, s.finish) for s in streams]


WANT = []


def check(streams):
    """Number of answers that are not those of one process."""
    wrong = 0
    for stream, want in zip(streams, WANT):
        stream.join()
        wrong += stream.error is not None or (stream.text, stream.finish) != want
    return wrong


def nothing_held(cluster):
    return all(w["running"] == w["waiting"] == w["kv_tokens"] == 0
               and w["hand_offs"]["tickets_granted"] == w["hand_offs"]["tickets_released"]
               and w["hand_offs"]["pins_acquired"] == w["hand_offs"]["pins_released"]
               for w in cluster.status())


def gateway_events(cluster, name):
    """Log lines of the gateway with this event."""
    events = []
    for line in cluster.logs("gateway").splitlines():
        if line.startswith("{") and '"%s"' % name in line:
            events.append(json.loads(line))
    return events


def log_time(event):
    """Seconds since the epoch of a log line."""
    import datetime
    return datetime.datetime.fromisoformat(event["ts"].replace("Z", "+00:00")).timestamp()


def wait_event(cluster, name, after):
    found = []

    def look():
        found[:] = [e for e in gateway_events(cluster, name) if log_time(e) >= after]
        return bool(found)
    wait_for(look)
    return log_time(found[0])


def busiest(cluster, role):
    return max((w for w in cluster.status() if w["role"] == role), key=lambda w: w["running"])


def kill_during(role, sign, events):
    """(wrong answers, longest gap between events s, time until the gateway knew s)."""
    with Cluster(*TWO_OF_EACH) as cluster:
        streams = start(cluster.port)
        wait_for(lambda: all(s.events >= events or s.error for s in streams))
        victim = busiest(cluster, role)
        struck = time.time()
        os.kill(victim["pid"], sign)
        known = wait_event(cluster, "worker.lost", struck) - struck
        wrong = check(streams)
        if sign == signal.SIGSTOP:
            os.kill(victim["pid"], signal.SIGCONT)
        gap = max(s.longest_gap() for s in streams)
        first = max(s.times[0] - s.begin for s in streams)
        return wrong, gap, known, first


def measure_decode_killed(rows):
    results = [kill_during("decode", signal.SIGKILL, 4) for _ in range(OPTIONS.rounds)]
    rows.append(("4", "decode worker killed: answers that differ", "0", sum(r[0] for r in results)))
    rows.append(("4", "longest pause of a stream", "2 s", "%.2f s" % max(r[1] for r in results)))
    rows.append(("7", "crash known after", "0.2 s", "%.3f s" % max(r[2] for r in results)))


def measure_prefill_killed(rows):
    with Cluster(*TWO_OF_EACH) as cluster:
        streams = start(cluster.port)
        wrong = check(streams)
        usual = max(s.times[0] - s.begin for s in streams)
    results = [kill_during("prefill", signal.SIGKILL, 0) for _ in range(OPTIONS.rounds)]
    wrong += sum(r[0] for r in results)
    rows.append(("3", "prefill worker killed: answers that differ", "0", wrong))
    rows.append(("3", "time to first token beyond the usual", "prefill + 0.5 s",
                 "%+.2f s" % (max(r[3] for r in results) - usual)))


def measure_hang(rows):
    results = [kill_during("decode", signal.SIGSTOP, 4) for _ in range(OPTIONS.rounds)]
    rows.append(("7", "hang known after", "3 s", "%.2f s" % max(r[2] for r in results)))
    rows.append(("7", "decode worker hangs: answers that differ", "0", sum(r[0] for r in results)))


def measure_partition(rows):
    from faulty_network import TO_PEER, TO_WORKER, FarGateway
    known, wrong = [], 0
    for _ in range(OPTIONS.rounds):
        with Cluster(*TWO_OF_EACH) as cluster, FarGateway(cluster) as gateway:
            streams = start(gateway.port)
            wait_for(lambda: all(s.events >= 4 or s.error for s in streams))
            lost = gateway.count("worker.lost")
            proxy = gateway.proxies[busiest(cluster, "decode")["name"]]
            begin = time.time()
            proxy.hold(TO_WORKER, TO_PEER)
            wait_for(lambda: gateway.count("worker.lost") > lost)
            known.append(time.time() - begin)
            wrong += check(streams)
            proxy.release()
    rows.append(("7", "partition known after", "4 s", "%.2f s" % max(known)))
    rows.append(("7", "decode worker cut off: answers that differ", "0", wrong))


def measure_aborts(rows):
    delays = []
    with Cluster(*TWO_OF_EACH) as cluster:
        import http.client
        import random
        draw = random.Random(1)
        for i in range(OPTIONS.aborts):
            connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=60)
            connection.request("POST", "/v1/completions", json.dumps(payload(i % STREAMS)),
                               {"Content-Type": "application/json", "X-Request-Id": "abort-%d" % i})
            if draw.random() < 0.5:
                connection.getresponse().readline()
            time.sleep(draw.random() * 0.05)
            delays.append(["abort-%d" % i, time.time()])
            connection.sock.close()
            connection.close()
        last = time.time()
        wait_for(lambda: nothing_held(cluster))
        clean = time.time() - last
        ends = {e["request_id"]: log_time(e) for e in gateway_events(cluster, "request")
                if e.get("request_id", "").startswith("abort-")}
        times = sorted(ends[name] - left for name, left in delays if name in ends)
    rows.append(("1", "%d aborts: nothing is held after the last" % OPTIONS.aborts, "2 s",
                 "%.2f s" % clean))
    rows.append(("2", "abort has ended every part, P99 (P50)", "200 ms", "%.0f ms (%.0f ms)" % (
        1e3 * times[int(len(times) * 0.99)], 1e3 * statistics.median(times))))


ABORT_CLIENTS = 8


def measure_abort_storm(rows):
    """As many aborts as a few clients manage in the given time, at every moment of a request."""
    import http.client
    import random
    counts = [0] * ABORT_CLIENTS
    with Cluster(*TWO_OF_EACH) as cluster:
        end = time.time() + OPTIONS.storm

        def keep_aborting(number):
            draw = random.Random(number)
            while time.time() < end:
                connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=60)
                connection.request("POST", "/v1/completions", json.dumps(payload(draw.randrange(8))),
                                   {"Content-Type": "application/json"})
                if draw.random() < 0.3:
                    connection.getresponse().readline()
                time.sleep(draw.random() * 0.01)
                connection.close()
                counts[number] += 1
        clients = [threading.Thread(target=keep_aborting, args=(i,)) for i in range(ABORT_CLIENTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        last = time.time()
        wait_for(lambda: nothing_held(cluster))
        clean = time.time() - last
        held = sum(w["hand_offs"]["tickets_granted"] for w in cluster.status())
        wrong = check(start(cluster.port))
    rows.append(("1", "{:,} aborts by {} clients in {:.0f} s ({:,} states on their way): nothing is held"
                 " after the last".format(sum(counts), ABORT_CLIENTS, OPTIONS.storm, held),
                 "2 s", "%.2f s" % clean))
    rows.append(("1", "requests after them that failed", "0", wrong))


def measure_gateway_killed(rows):
    import fault_matrix_test as matrix
    name = "goals"
    with support.Server("--threads", "1") as server:
        clients = matrix.ask_all(server.port, name)
        for client in clients:
            client.join()
        want = [c.answer for c in clients]
    wrong, adopted, took = 0, 0, []
    for _ in range(OPTIONS.rounds):
        with Cluster(*TWO_OF_EACH) as cluster:
            clients = matrix.ask_all(cluster.port, name)
            wait_for(lambda: all(c.events >= 4 or c.answer for c in clients[:2]))
            struck = time.time()
            os.kill(cluster.pid_of("gateway"), signal.SIGKILL)
            for client, answer in zip(clients, want):
                client.join()
                wrong += client.answer != answer
            took.append(time.time() - struck)
            adopted += len(re.findall("run.adopted", cluster.logs()))
    rows.append(("5", "gateway killed, asked again with the key: answers that differ", "0", wrong))
    rows.append(("5", "runs taken over (of %d)" % (OPTIONS.rounds * (len(want) + 1)), "-", adopted))
    rows.append(("5", "until every client has its answer", "-", "%.1f s" % max(took)))


def measure_registry(rows):
    with Cluster(*TWO_OF_EACH, "--registry", "dev") as cluster:
        os.kill(cluster.pid_of("registry"), signal.SIGSTOP)
        begin, wrong, asked = time.time(), 0, 0
        while time.time() - begin < OPTIONS.outage:
            wrong += check(start(cluster.port))
            asked += STREAMS
        pid = cluster.pid_of("registry")
        back = time.time()
        os.kill(pid, signal.SIGKILL)  # the new one has forgotten everything

        def registered():
            return all(cluster.logs(w["name"]).count("registry.registered") > 1
                       for w in cluster.status())
        wait_for(registered)
        again = time.time() - back
        wrong += check(start(cluster.port))
    rows.append(("6", "registry gone for %.0f s: failed of %d requests" % (OPTIONS.outage, asked),
                 "0", wrong))
    rows.append(("6", "workers registered again (a second of it is its restart)", "5 s",
                 "%.1f s" % again))


def keep_asking(cluster, stop, results):
    while not stop.is_set():
        results.append(check(start(cluster.port)))


def measure_drain(rows):
    for role, bound in (("prefill", 10), ("decode", 60)):
        with Cluster(*TWO_OF_EACH) as cluster:
            stop, results = threading.Event(), []
            load = threading.Thread(target=keep_asking, args=(cluster, stop, results))
            load.start()
            time.sleep(1)
            begin = time.time()
            support.run("cluster", "drain", role + "-0", "--dir", cluster.folder.name)
            took = time.time() - begin
            stop.set()
            load.join()
        rows.append(("8", "%s worker drained under load" % role, "%d s" % bound, "%.1f s" % took))
        rows.append(("8", "of these, requests lost or wrong", "0", sum(results)))


def measure_restart(rows):
    with Cluster(*TWO_OF_EACH, "--worker-flag=--revision=one") as cluster:
        stop, results = threading.Event(), []
        load = threading.Thread(target=keep_asking, args=(cluster, stop, results))
        load.start()
        time.sleep(1)
        begin = time.time()
        done = support.run("cluster", "restart", "--dir", cluster.folder.name, "--revision", "two")
        took = time.time() - begin
        stop.set()
        load.join()
        refused = cluster.logs().count("revisions differ")
        if done.returncode != 0:
            raise SystemExit(done.stderr)
    rows.append(("8", "rolling restart of 2 + 2 under load: lost or wrong of %d requests"
                 % (len(results) * STREAMS), "0", sum(results)))
    rows.append(("8", "pairs of two revisions that met", "0", refused))
    rows.append(("8", "rolling restart took", "-", "%.1f s" % took))


def spread(values):
    """Slowest tenth over the median."""
    ordered = sorted(values)
    return ordered[int(len(ordered) * 0.9)] / statistics.median(ordered)


def fresh(number, words):
    """A prompt of which no cache holds anything."""
    return "%d:" % number + " word" * words


def measure_burst(rows):
    # Of prompts alone each prefill worker has a core; with answers four workers share two.
    for what, tokens in (("prompts", 1), ("requests", 20)):
        with Cluster(*TWO_OF_EACH) as cluster:
            streams = [TimedStream(cluster.port, dict(payload(0), prompt=fresh(i, 600),
                                                      max_tokens=tokens)) for i in range(40)]
            for stream in streams:
                stream.join()
            time.sleep(1.2)  # reports bring the times of steps once a second
            status, shares = cluster.status(), cluster.busiest()
        for role, count in (("prefill", "committed"), ("decode", "tickets_granted")):
            if tokens == 1 and role == "decode":
                continue
            rows.append(("10", "burst of 40 equal %s: time in steps of the busiest %s worker over"
                         " the mean" % (what, role), "1.05", "%.3f" % shares[role]))
            counts = [w["hand_offs"][count] for w in status if w["role"] == role]
            rows.append(("10", "burst of 40 equal %s: difference between %s workers" % (what, role),
                         "1", max(counts) - min(counts)))
        if tokens > 1:
            rows.append(("10", "spread over its requests, 90 % over 50 %: time per token", "-",
                         "%.2f" % spread([(s.times[-1] - s.times[0]) / (s.events - 1)
                                          for s in streams])))


def measure_router(rows):
    done = support.run("bench", "router")
    for line in done.stdout.decode().splitlines():
        match = re.match(r"(.*\S) +(\d+) +(requests|events)/s ", line)
        if match:
            bound = "20,000" if match.group(3) == "requests" else "1,000,000"
            rows.append(("12", "router, %s, a second and core" % match.group(1), bound,
                         "{:,}".format(int(match.group(2)))))


def first_token_ms(port, seed, count=40):
    """Times to the first token of requests one after the other."""
    times = []
    for i in range(count):
        stream = TimedStream(port, dict(payload(0), prompt=fresh(seed + i, 200), max_tokens=4))
        stream.join()
        times.append(1e3 * (stream.times[0] - stream.begin))
    return times


def percentiles(times):
    return statistics.median(times), sorted(times)[int(len(times) * 0.99)]


def measure_classes(rows):
    import itertools
    numbers = itertools.count(10000)
    for what, shape in (("two of each on two cores", TWO_OF_EACH),
                        ("one of each, a core a worker", ("--prefill", "1", "--decode", "1",
                                                          *DEBUG_LOG))):
        done = []

        def keep_busy(port, stop, done=done):
            while not stop.is_set():
                stream = Stream(port, dict(payload(1), prompt=fresh(next(numbers), 400),
                                           max_tokens=60, service_tier="batch"))
                stream.join()
                done.append(stream.error)

        with Cluster(*shape) as cluster:
            alone = percentiles(first_token_ms(cluster.port, 1000))
            stop = threading.Event()
            load = [threading.Thread(target=keep_busy, args=(cluster.port, stop))
                    for _ in range(12)]
            for thread in load:
                thread.start()
            time.sleep(2)
            before = len(done)
            begin = time.time()
            beside = percentiles(first_token_ms(cluster.port, 2000))
            rate = (len(done) - before) / (time.time() - begin)
            stop.set()
            for thread in load:
                thread.join()
            forecasts = gateway_events(cluster, "request.forecast")
        rows.append(("17", "%s: first token alone, P50 and P99" % what, "-", "%.0f, %.0f ms" % alone))
        rows.append(("17", "%s: beside 12 batch clients, P50 and P99" % what, "+ 5 %",
                     "%.0f, %.0f ms" % beside))
        rows.append(("17", "%s: batch answers a second meanwhile (failed of all)" % what, "-",
                     "%.1f (%d of %d)" % (rate, sum(e is not None for e in done), len(done))))
        for name, token, bound in (("ttft", "first token", "5 %"), ("tpot", "time per token", "3 %")):
            rows.append(("16", "%s: error of the predicted %s, batch work included" % (what, token),
                         bound, "%.1f %%" % (100 * errors_of(forecasts, name,
                                                             name + "_forecast")[0])))


def errors_of(forecasts, what, name):
    """Mean error and mean signed error of a forecast, as shares of what was measured."""
    signed = [f[name] / f[what] - 1 for f in forecasts if f[what] > 0]
    return statistics.mean([abs(e) for e in signed]), statistics.mean(signed)


def ask_in_turn(cluster, words, seed):
    for i, number in enumerate(words):
        TimedStream(cluster.port, dict(payload(0), prompt=fresh(seed + i, number),
                                       max_tokens=40)).join()


def ask_alone(cluster, words, seed):
    """One request after the other; what the gateway expected of them and what came."""
    before = len(gateway_events(cluster, "request.forecast"))
    ask_in_turn(cluster, words, seed)
    wait_for(lambda: len(gateway_events(cluster, "request.forecast")) >= before + len(words))
    return gateway_events(cluster, "request.forecast")[before:]


def measure_forecasts(rows):
    """A core for each worker and one request after the other: what is left is the rule's own."""
    import random
    draw = random.Random(1)
    for drafts, flags in (("", ()), (" without drafts", ("--worker-flag=--spec=off",))):
        with Cluster("--prefill", "1", "--decode", "1", *DEBUG_LOG, *flags) as cluster:
            # Of the first ones nothing is expected: the costs are not known yet.
            ask_in_turn(cluster, [draw.choice((50, 100, 200, 400)) for _ in range(60)], 1000)
            asked = ask_alone(cluster, [draw.choice((50, 100, 200, 400)) for _ in range(60)], 2000)
            equal = ask_alone(cluster, [200] * 30, 3000)
        for what, name, bound in (("first token", "ttft", "5 %"), ("time per token", "tpot", "3 %")):
            error, bias = errors_of(asked, name, name + "_forecast")
            raw, raw_bias = errors_of(asked, name, name + "_by_costs")
            usual = statistics.median(f[name] for f in equal)
            noise = statistics.mean([abs(usual - f[name]) / f[name] for f in equal])
            rows.append(("16", "one request at a time, a core a worker%s: error of the predicted %s"
                         " (bias; by costs alone; of the median of equal prompts)" % (drafts, what),
                         bound, "%.1f %% (%+.1f; %.1f, %+.1f; %.1f)" % tuple(
                             100 * x for x in (error, bias, raw, raw_bias, noise))))


def measure_corruption(rows):
    for transport in ("shm", "tcp"):
        with Cluster(*TWO_OF_EACH, "--worker-flag=--transport=" + transport,
                     "--prefill-flag=--test-change-extents=2") as cluster:
            wrong, asked = 0, 0
            for _ in range(10 * OPTIONS.rounds):
                wrong += check(start(cluster.port))
                asked += STREAMS
            changed = cluster.logs().count("test.extent_changed")
            noticed = sum(w["hand_offs"]["extents_nacked"] for w in cluster.status())
            failed = sum(w["hand_offs"]["failed"] for w in cluster.status())
        rows.append(("14", "%s: of %d extents with a changed byte noticed" % (transport, changed),
                     "100 %", "%d" % noticed))
        rows.append(("14", "of %d requests lost or wrong; hand-offs begun anew" % asked, "0",
                     "%d; %d" % (wrong, failed)))


SUITE = ("cluster", "disaggregation", "fault_matrix", "network_faults")


def measure_suite(rows):
    times, failed = [], 0
    for _ in range(OPTIONS.rounds):
        begin = time.time()
        for name in SUITE:
            done = subprocess.run([sys.executable, ROOT / "tests/integration/product"
                                   / (name + "_test.py"), OPTIONS.binary], capture_output=True,
                                  check=False)
            failed += done.returncode != 0
        times.append(time.time() - begin)
    rows.append(("22", "tests of several processes (%s), %d times" % (", ".join(SUITE),
                                                                      OPTIONS.rounds),
                 "300 s", "%.0f s" % max(times)))
    rows.append(("22", "of these runs failed", "0", failed))


def measure_bad_requests(rows):
    import http.client
    with Cluster(*TWO_OF_EACH) as cluster:
        streams = start(cluster.port)
        begin, count, other = time.time(), 0, 0
        connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=60)
        while time.time() - begin < 5:
            connection.request("POST", "/v1/completions", '{"model":"deepinfer-tiny","n":0}',
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            count += 1
            other += response.status != 400
        wrong = check(streams)
        wrong += check(start(cluster.port))
    rows.append(("18", "%.0f bad requests a second from one client: not answered by 400"
                 % (count / 5), "0", other))
    rows.append(("18", "good requests beside and after them that failed", "0", wrong))


MEASUREMENTS = {
    "aborts": measure_aborts, "storm": measure_abort_storm, "prefill": measure_prefill_killed, "decode": measure_decode_killed,
    "gateway": measure_gateway_killed, "registry": measure_registry, "hang": measure_hang,
    "partition": measure_partition,
    "drain": measure_drain, "restart": measure_restart, "burst": measure_burst,
    "classes": measure_classes, "router": measure_router, "bad": measure_bad_requests,
    "forecasts": measure_forecasts, "corruption": measure_corruption, "suite": measure_suite,
}


def main():
    names = OPTIONS.only.split(",") if OPTIONS.only else list(MEASUREMENTS)
    WANT.extend(wanted())
    rows = []
    for name in names:
        print("measuring %s" % name, file=sys.stderr)
        MEASUREMENTS[name](rows)
    print("| goal | measured | bound | worst |\n|---|---|---|---|")
    for row in rows:
        print("| %s | %s | %s | %s |" % row)
    if OPTIONS.json:
        pathlib.Path(OPTIONS.json).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
