"""The ledger of a running server: 200 mixed requests against its invariants, the metrics, and the
usage that clients saw; then the commands on made-up ledgers against decimal arithmetic."""

import collections
import concurrent.futures
import copy
import decimal
import http.client
import json
import pathlib
import random
import re
import tempfile
import time
import unittest

import support
from support import Server, run
from serve_test import chat, request, start_endless

# flat-example: hit 0, miss 1, output 2 per million tokens, in pico-units per token.
MISS, OUTPUT = 1_000_000, 2_000_000


def read_lines(folder, schema="deepinfer.ledger.v1"):
    lines = []
    for path in sorted(pathlib.Path(folder).glob("ledger-*.jsonl")):
        lines += [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["schema"] == schema]


def usage_of_stream(raw):
    events = [line[6:] for line in raw.split("\n\n") if line.startswith("data: {")]
    return json.loads(events[-1])["usage"]


def metric(text, name, **labels):
    total = 0.0
    for line in text.splitlines():
        match = re.match(r"deepinfer:%s\{(.*)\} (\S+)$" % name, line)
        if match and all('%s="%s"' % pair in match.group(1) for pair in labels.items()):
            total += float(match.group(2))
    return total


COST_BOOK = {"id": "lab", "currency": "USD",
             "device_hour": {"cpu": {"price": "2.00", "kind": "bare", "source": "test"}},
             "cpu_core_hour": "0.03",
             "network_per_gb": {"client": "0.05"}, "operations_hour": {"staff": "0.5"}}


class ServerLedger(unittest.TestCase):
    """Sends everything once; every test looks at what came of it."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.usages = {}
        cls.cost_book = pathlib.Path(cls.folder.name) / "costs.json"
        cls.cost_book.write_text(json.dumps(COST_BOOK))
        with Server("--ledger", cls.folder.name, "--price-book", "flat-example", "--run-id", "r1",
                    "--max-num-seqs", "8", "--cost-book", cls.cost_book) as server:
            cls.send_all(server)
            assert request(server, "GET", "/health_generate")[0] == 200
            cls.wait_until_idle(server)
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            connection.request("GET", "/metrics")
            cls.metrics = connection.getresponse().read().decode()
            assert server.stop() == 0
        cls.lines = read_lines(cls.folder.name)
        cls.overhead = read_lines(cls.folder.name, "deepinfer.overhead.v1")
        cls.by_request = collections.defaultdict(list)
        for line in cls.lines:
            cls.by_request[line["ids"]["request_id"]].append(line)

    @classmethod
    def send_all(cls, server):
        def one(index):
            name = "mixed-%d" % index
            headers = {"X-Request-Id": name}
            kind = index % 6
            body = chat("Say %d" % (index % 7), max_tokens=8 + index % 5)
            path = "/v1/chat/completions"
            if kind == 0:
                body.update(thinking={"type": "enabled"})
            elif kind == 1:
                body.update(stream=True, stream_options={"include_usage": True})
            elif kind == 2:
                body.update(n=2, temperature=1, seed=index)
            elif kind == 3:
                path, body = "/v1/messages", {
                    "model": "deepinfer-tiny", "max_tokens": 9, "temperature": 0,
                    "messages": [{"role": "user", "content": "Say %d" % (index % 7)}]}
            elif kind == 4:
                body = {**body, "temperature": 7}
            elif kind == 5:
                path, body = "/v1/completions", {"model": "deepinfer-tiny", "max_tokens": 6,
                                                 "prompt": ["Once", "What is"], "temperature": 0}
            status, answer = request(server, "POST", path, body, headers)
            if kind == 1:
                answer = {"usage": usage_of_stream(answer.decode())}
            assert status == (400 if kind == 4 else 200), (kind, answer)
            return name, answer.get("usage")

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            cls.usages.update(pool.map(one, range(180)))
        for _ in range(10):
            with start_endless(server) as s:
                while b"data:" not in s.recv(65536):
                    pass
        # A retry of the same body, one with a name of its own, and one whose key is its name.
        for count in ("0", "1"):
            request(server, "POST", "/v1/chat/completions", chat("Retried", max_tokens=3),
                    {"x-stainless-retry-count": count})
        for _ in range(2):
            request(server, "POST", "/v1/chat/completions", chat("Named", max_tokens=3),
                    {"Idempotency-Key": "work-7", "traceparent": "00-%s-%s-01" % ("ab" * 16, "cd" * 8),
                     "X-Correlation-ID": "sess"})
        cls.num_requests = 180 + 10 + 4

    @classmethod
    def wait_until_idle(cls, server):
        deadline = time.monotonic() + support.TIMEOUT_S
        while len(read_lines(cls.folder.name)) < cls.num_requests:
            assert time.monotonic() < deadline, len(read_lines(cls.folder.name))
            time.sleep(0.02)

    def test_every_request_has_one_line_that_keeps_the_invariants(self):
        self.assertEqual(len(self.lines), self.num_requests)
        done = run("ledger", "check", self.folder.name)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(b"%d lines keep every invariant" % (len(self.lines) + len(self.overhead)),
                      done.stdout)

    def test_the_usage_of_the_client_gives_the_same_tokens_and_revenue(self):
        compared = 0
        for name, usage in self.usages.items():
            (line,) = self.by_request[name]
            money = sum(line["money"]["revenue"].values())
            if usage is None:
                self.assertEqual((line["outcome"]["http_status"], money), (400, 0))
                continue
            extension = usage["deepinfer"]
            cached, computed = extension["cached_tokens"], extension["computed_tokens"]
            generated = extension["generated_tokens"]
            tokens = line["tokens"]
            self.assertEqual((tokens["cached"], tokens["computed"], tokens["generated"]),
                             (cached, computed, generated))
            self.assertEqual(tokens["cached_by_tier"], extension["cached_by_tier"])
            self.assertEqual(money, computed * MISS + generated * OUTPUT)
            compared += 1
        self.assertEqual(compared, 150)

    def test_sums_equal_the_metrics(self):
        def total(field):
            return sum(line["tokens"][field] for line in self.lines)

        self.assertEqual(metric(self.metrics, "prompt_tokens_total"), total("prompt"))
        for name in ("cached", "computed", "generated", "replayed", "wasted"):
            self.assertEqual(metric(self.metrics, "tokens_total", **{"class": name}), total(name), name)
        outcomes = collections.Counter(
            "cancelled" if line["outcome"]["cancelled_by"] == "client" else
            "error" if line["outcome"]["error_code"] else "ok" for line in self.lines)
        self.assertEqual(outcomes["cancelled"], 10)
        self.assertEqual(outcomes["error"], 30)
        for name, count in outcomes.items():
            self.assertEqual(metric(self.metrics, "requests_total", outcome=name), count, name)
        money = sum(sum(line["money"]["revenue"].values()) for line in self.lines)
        self.assertAlmostEqual(metric(self.metrics, "revenue_usd_total") * 1e12, money, delta=1e3)
        self.assertEqual(metric(self.metrics, "ledger_dropped_total"), 0)
        cost = sum(sum(line["money"]["cost"].values()) for line in self.lines)
        self.assertAlmostEqual(metric(self.metrics, "cost_usd_total") * 1e12, cost, delta=1e3)

    def test_steps_are_charged_to_the_requests_in_them(self):
        shares = [line["resource"]["device_ns"] for line in self.lines]
        charged = sum((share["prefill"] or 0) + (share["decode"] or 0) for share in shares)
        # Steps in flight when a request ends have no line to go to: their time is overhead.
        steps = round(metric(self.metrics, "device_seconds_total") * 1e9)
        self.assertLessEqual(charged, steps)
        self.assertEqual(charged, sum(line["requests_ns"] for line in self.overhead))
        self.assertGreater(charged, 0)
        for line in self.lines:
            used, tokens = line["resource"], line["tokens"]
            self.assertEqual(used["device_ns"]["prefill"] is None, line["time_ns"]["admitted"] is None)
            if tokens["computed"] and tokens["generated"] > 1:
                self.assertGreater(used["device_ns"]["prefill"], 0)
                self.assertGreater(used["device_ns"]["decode"], 0)
                self.assertGreater(used["kv_block_ns"], 0)
            spent = (used["device_ns"]["prefill"] or 0) + (used["device_ns"]["decode"] or 0)
            self.assertEqual(line["money"]["cost"]["compute"],
                             (spent * 2 * 10**12 + used["cpu_ns"] * 3 * 10**10) // (3600 * 10**9))

    def test_requests_and_overhead_are_the_time_of_the_device(self):
        kinds = [line["kind"] for line in self.overhead]
        self.assertEqual(sorted(set(kinds)), ["idle", "probe", "startup"])
        wall = 0
        for line in self.overhead:
            if line["kind"] != "probe":
                wall += line["time_ns"]["to"] - line["time_ns"]["from"]
            self.assertGreaterEqual(line["device_ns"], 0)
            self.assertGreaterEqual(line["requests_ns"], 0)
            self.assertEqual(line["scope"]["role"], "all")
            self.assertEqual(line["scope"]["run_id"], "r1")
            self.assertEqual(line["money"]["cost"]["compute"],
                             line["device_ns"] * 2 * 10**12 // (3600 * 10**9))
        shares = [line["resource"]["device_ns"] for line in self.lines]
        charged = sum((share["prefill"] or 0) + (share["decode"] or 0) for share in shares)
        self.assertEqual(charged + sum(line["device_ns"] for line in self.overhead), wall)
        self.assertEqual([line["is_last"] for line in self.overhead].count(True), 1)
        done = run("ledger", "sum", self.folder.name, "--json")
        sums = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(sum(line["device_ns"] for line in sums), wall)

    def test_every_request_says_what_it_used_beside_the_device(self):
        for line in self.lines:
            used = line["resource"]
            self.assertGreater(used["cpu_ns"], 0)
            self.assertGreater(used["net_bytes"]["client"], 0)
            # One process: nothing is handed over, and its cache is files.
            admitted = line["time_ns"]["admitted"] is not None
            self.assertEqual([used["net_bytes"][name] for name in ("handoff", "store", "control")],
                             [0, 0, 0] if admitted else [None, 0, None])
            self.assertGreaterEqual(line["tokens"]["cache_written_output"], 0)
            self.assertEqual(len(line["scope"]["weights_sha256"]), 64)

    def test_sum_prints_what_the_lines_add_up_to(self):
        done = run("ledger", "sum", self.folder.name, "--by", "route,http_status", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        groups = [group for group in map(json.loads, done.stdout.splitlines())
                  if "overhead" not in group]
        expected = collections.Counter()
        for line in self.lines:
            key = line["ids"]["route"], str(line["outcome"]["http_status"])
            expected[key] += sum(line["money"]["revenue"].values())
        got = {(g["ids.route"], g["outcome.http_status"]): g["revenue"] for g in groups}
        self.assertEqual(got, {key: "%d.%012d" % divmod(value, 10**12)
                               for key, value in expected.items()})

    def test_cancelled_streams_are_billed_for_what_was_sent(self):
        cut = [line for line in self.lines if line["outcome"]["cancelled_by"] == "client"]
        self.assertEqual(len(cut), 10)
        for line in cut:
            self.assertEqual(line["outcome"]["http_status"], 499)
            self.assertGreater(line["stream"]["n_chunks"], 0)
            self.assertIn("cancelled", line["outcome"]["why_not"])
            self.assertEqual(line["money"]["revenue"]["output"],
                             line["tokens"]["generated"] * OUTPUT)

    def test_retries_share_a_work_id(self):
        named = [line for line in self.lines if line["ids"]["work_id"] == "work-7"]
        self.assertEqual(len(named), 2)
        self.assertEqual(named[0]["ids"]["trace_id"], "ab" * 16)
        self.assertEqual(named[0]["ids"]["session_label"], "sess")
        (retry,) = [line for line in self.lines if line["ids"]["client_retry"] == 1]
        attempts = [line for line in self.lines if line["ids"]["work_id"] == retry["ids"]["work_id"]]
        self.assertEqual([line["ids"]["client_retry"] for line in attempts], [0, 1])
        self.assertEqual(attempts[0]["ids"]["attempt_id"], retry["ids"]["work_id"])

    def test_reasoning_and_tools_are_split(self):
        for line in self.lines:
            tokens = line["tokens"]
            self.assertEqual(tokens["generated"], sum(
                tokens[part] for part in ("reasoning", "content", "tool", "control")))
        # That sum follows from how the rest is named; the client's own count does not.
        compared = 0
        for name, usage in self.usages.items():
            details = (usage or {}).get("completion_tokens_details")
            if not details:
                continue
            (line,) = self.by_request[name]
            self.assertEqual(line["tokens"]["reasoning"], details["reasoning_tokens"], name)
            compared += details["reasoning_tokens"] > 0
        self.assertGreater(compared, 0)

    def test_lines_hold_no_text(self):
        text = json.dumps(self.lines)
        for word in ("Say ", "Retried", "Named", "Once"):
            self.assertNotIn(word, text)

    def test_tail_shows_the_newest(self):
        # Over files whose names say nothing about the order, lines come in that of reception.
        by_time = sorted(self.lines, key=lambda line: line["time_ns"]["wall_utc"]["recv"])
        with tempfile.TemporaryDirectory() as folder:
            for part in range(2):
                path = pathlib.Path(folder) / ("ledger-20260101T0%d-1-0.jsonl" % part)
                path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n"
                                        for line in by_time[1 - part::2]), encoding="utf-8")
            done = run("ledger", "tail", folder, "-n", "3", "--json")
        self.assertEqual([json.loads(line) for line in done.stdout.splitlines()], by_time[-3:])
        table = run("ledger", "tail", self.folder.name, "-n", "2").stdout.decode().splitlines()
        self.assertEqual(len(table), 3)
        self.assertIn("/v1/chat/completions", table[1])

    def test_grades_make_work_qualified(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "ledger-20260101T00-1-0.jsonl"
            good = [line for line in self.lines if line["outcome"]["http_status"] == 200][:3]
            path.write_text("".join(json.dumps(line) + "\n" for line in good), encoding="utf-8")
            grades = pathlib.Path(folder) / "grades"
            grades.write_text("".join(
                json.dumps({"attempt_id": line["ids"]["attempt_id"], "quality": quality}) + "\n"
                for line, quality in zip(good, ("pass", "fail"))), encoding="utf-8")
            done = run("ledger", "grade", folder, "--checker", "exact", "--input", grades)
            self.assertEqual(done.returncode, 0, done.stderr)
            total = json.loads(run("ledger", "sum", folder, "--json").stdout)
            self.assertEqual((total["completed"], total["qualified"]), (3, 1))
            self.assertEqual(run("ledger", "check", folder).returncode, 0)
            grades.write_text('{"attempt_id":"none","quality":"pass"}\n', encoding="utf-8")
            done = run("ledger", "grade", folder, "--checker", "exact", "--input", grades)
            self.assertEqual(done.returncode, 2)
            self.assertIn(b"grades:1", done.stderr)

    def test_check_names_the_first_broken_line(self):
        with tempfile.TemporaryDirectory() as folder:
            lines = copy.deepcopy(self.lines[:4])
            lines[2]["tokens"]["cached"] += 1
            path = pathlib.Path(folder) / "ledger-20260101T00-1-0.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
            done = run("ledger", "check", folder)
            self.assertEqual(done.returncode, 1)
            self.assertIn(b":3:", done.stdout)

    def test_a_line_without_end_is_left_out(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "ledger-20260101T00-1-0.jsonl"
            path.write_text(json.dumps(self.lines[0]) + "\n" + json.dumps(self.lines[1])[:200],
                            encoding="utf-8")
            done = run("ledger", "sum", folder, "--json")
            self.assertEqual(json.loads(done.stdout)["lines"], 1)
            self.assertIn(b"1 line(s) without an end", done.stderr)


class LedgerArithmetic(unittest.TestCase):
    def test_a_hundred_thousand_lines_add_up_exactly(self):
        with tempfile.TemporaryDirectory() as folder:
            with Server("--ledger", folder, "--price-book", "none") as server:
                request(server, "POST", "/v1/chat/completions", chat("Hello", max_tokens=2))
                server.stop()
            (template,) = read_lines(folder)
            (path,) = pathlib.Path(folder).glob("ledger-*.jsonl")
            self.assertIsNone(template["money"]["revenue"])
            template["money"].update(price_book="own", price_window="flat", revenue={
                "hit": "@hit", "miss": 0, "output": "@output", "cache_write": 0})
            template["ids"].update(attempt_id="@attempt", work_id="@work")
            pattern = json.dumps(template)
            rng = random.Random(5)
            decimal.getcontext().prec = 60
            unit = decimal.Decimal(10) ** -12
            want = decimal.Decimal(0)
            with path.open("w", encoding="utf-8") as file:
                for i in range(100_000):
                    hit, output = rng.randrange(1 << 53), rng.randrange(1 << 53)
                    want += (hit + output) * unit
                    file.write(pattern.replace('"@hit"', str(hit)).replace('"@output"', str(output))
                               .replace("@attempt", "a%d" % i).replace("@work", "w%d" % i) + "\n")
            done = run("ledger", "sum", folder, "--json")
            total = json.loads(done.stdout)
            self.assertEqual(total["lines"], 100_000)
            self.assertEqual(decimal.Decimal(total["revenue"]), want)
            self.assertEqual(done.stdout, run("ledger", "sum", path, "--json").stdout)

    def test_usage_errors_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            for args, message in ((("sum", folder), b"no ledger-*.jsonl"),
                                  (("sum", folder, "--by", "colour"), b"colour"),
                                  (("sum", folder, "--since", "yesterday"), b"--since"),
                                  (("sum", folder, "--price-book", "nobody"), b"nobody")):
                done = run("ledger", *args)
                self.assertNotEqual(done.returncode, 0, args)
                self.assertIn(message, done.stderr)
        done = run("serve", support.DEMO_MODEL, "--price-book", "nobody")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"deepseek-flash-2026-09-10", done.stderr)


if __name__ == "__main__":
    unittest.main()
