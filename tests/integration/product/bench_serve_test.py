"""`deepinfer bench serve` against a real server with the bundled model."""

import json
import pathlib
import tempfile
import unittest
import xml.dom.minidom

import support
from support import Server, run


class BenchServe(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-model-len", 1024)
        cls.addClassCleanup(cls.server.__exit__)
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)

    def bench(self, *args):
        out = self.folder / "out.json"
        done = run("bench", "serve", "--url", self.server.url, "--json", out, *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(out.read_text()), done.stdout.decode()

    def test_a_closed_loop_counts_every_token(self):
        reports, text = self.bench("--requests", 12, "--concurrency", 4, "--input-len", "20:40",
                                   "--output-len", 6)
        report = reports[0]
        self.assertEqual((report["completed"], report["failed"]), (12, 0), report)
        self.assertEqual(report["output_tokens"], 72)
        self.assertTrue(12 * 20 <= report["prompt_tokens"] <= 12 * 40, report)
        for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
            p = report[name]
            self.assertTrue(0 < p["p50"] <= p["p90"] <= p["p95"] <= p["p99"] <= p["max"], report)
        self.assertLess(report["ttft_ms"]["p50"], report["e2e_ms"]["p50"])
        self.assertIn("12 ok, 0 failed", text)

    def test_a_sweep_draws_a_picture(self):
        picture = self.folder / "sweep.svg"
        reports, _ = self.bench("--requests", 4, "--sweep", "1,2,4", "--input-len", 16,
                                "--output-len", 4, "--plot", picture)
        self.assertEqual([r["concurrency"] for r in reports], [1, 2, 4])
        svg = xml.dom.minidom.parse(str(picture))
        self.assertEqual(len(svg.getElementsByTagName("circle")), 3)

    def test_an_open_loop_keeps_its_arrivals(self):
        reports, _ = self.bench("--requests", 10, "--rate", 20, "--burstiness", 0,
                                "--input-len", 8, "--output-len", 2, "--shared-prefix", 0.5)
        self.assertEqual(reports[0]["completed"], 10)
        self.assertGreaterEqual(reports[0]["duration_s"], 9 / 20)

    def test_a_trace_sets_the_lengths(self):
        trace = self.folder / "trace.jsonl"
        rows = [{"timestamp": 100 * i, "input_length": 512 + 60 * i, "output_length": 2 + i,
                 "hash_ids": [0, 1 + i]} for i in range(3)]
        trace.write_text("\n".join(map(json.dumps, rows)))
        reports, _ = self.bench("--trace", trace, "--trace-time-scale", 0.1)
        self.assertEqual(reports[0]["prompt_tokens"], 3 * 512 + 60 + 120)
        self.assertEqual(reports[0]["output_tokens"], 2 + 3 + 4)
        reports, _ = self.bench("--trace", trace, "--trace-time-scale", 0, "--trace-max-input", 600)
        self.assertEqual(reports[0]["output_tokens"], 2 + 3)

    def test_failures_are_counted_and_named(self):
        out = self.folder / "failed.json"
        done = run("bench", "serve", "--url", self.server.url, "--json", out, "--requests", 3,
                   "--input-len", 2000, "--output-len", 1)
        self.assertEqual(done.returncode, 1, done.stderr)
        report = json.loads(out.read_text())[0]
        self.assertEqual((report["completed"], report["failed"]), (0, 3))
        self.assertEqual(list(report["errors"].values()), [3])
        reason = next(iter(report["errors"]))
        self.assertTrue(reason.startswith("status 400: "), reason)
        self.assertIn("1024", reason)
        self.assertIn("failed 3: " + reason, done.stdout.decode())

    def test_wrong_usage_is_told_apart_from_failure(self):
        for args in (("--input-len", "zero"), ("--url", "ftp://x"), ("--trace", "/dev/null")):
            done = run("bench", "serve", "--url", self.server.url, *args)
            self.assertEqual(done.returncode, 2, (args, done.stderr))
        done = run("bench", "serve", "--url", "http://127.0.0.1:1", "--requests", 1)
        self.assertEqual(done.returncode, 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
