"""The benchmarks as a user runs them: they measure, write reports and compare. No figure is judged."""

import json
import pathlib
import re
import tempfile
import unittest

from support import DEMO_MODEL, ROOT, run

# Operators that only move memory, and names that are no operators.
NOT_MEASURED = {"family_id", "uses_host_memory", "allocate", "free", "copy_to_device",
                "copy_to_host", "copy_on_device"}
CPU_FLAGS = pathlib.Path("/proc/cpuinfo").read_text()


def operators():
    """Names of ops.h as the benchmark writes them: LinearFp8 -> linear_fp8."""
    text = (ROOT / "src/kernels/ops.h").read_text()
    text = text[text.index("class Operators"):]
    names = re.findall(r"^  virtual [^~(]*?(\w+)\(", text, re.MULTILINE)
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in names} - NOT_MEASURED


class Benchmarks(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)

    def path(self, name):
        return pathlib.Path(self.dir.name) / name

    def report(self, *args):
        """Rows of the JSON report by name, and the printed text."""
        file = self.path("report.json")
        result = run("bench", *args, "--rounds", 2, "--json", file)
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(file.read_text())
        self.assertEqual(report["what"], args[0])
        for name in ("cpu", "flags", "isa", "commit", "build", "load_before", "load_after"):
            self.assertTrue(report["environment"][name], name)
        for row in report["rows"]:
            self.assertGreater(row["median"], 0, row)
        return {row["name"]: row for row in report["rows"]}, result.stdout.decode()

    def test_ceilings_of_every_thread_count(self):
        rows, text = self.report("ceilings", "--thread-counts", "1,2")
        for what in ("memory read", "fp32 multiply-add", "bf16 pairs", "int8 products"):
            for threads in (1, 2):
                name = "%s threads %d" % (what, threads)
                self.assertEqual(len(rows[name]["samples"]), 2)
                self.assertIn(name, text)

    def test_kernels_have_a_row_for_every_operator(self):
        rows, text = self.report("kernels", DEMO_MODEL, "--rows", "1,3", "--threads", 1,
                                 "--sample-ms", "0.1")
        found = operators()
        self.assertGreater(len(found), 30)
        measured = {name.split()[0] for name in rows}
        self.assertEqual(found, measured)
        for name, row in rows.items():
            self.assertIn("% of ceiling", row["facts"], name)
            self.assertRegex(name, "rows [13] threads 1$")
        self.assertIn("GFLOP/s", text)

    def test_kernels_know_their_names(self):
        result = run("bench", "kernels", DEMO_MODEL, "--only", "nothing")
        self.assertEqual(result.returncode, 2)
        self.assertIn(b"wq_b", result.stderr)

    def test_model_against_an_earlier_report(self):
        arguments = ["model", DEMO_MODEL, "--prompts", "40", "--batches", "1,3", "--contexts",
                     "64,200", "--steps", 2, "--threads", 1]
        picture = self.path("growth.svg")
        rows, _ = self.report(*arguments, "--plot", picture)
        # The prefill has one length, so only decoding has something to show.
        text = picture.read_text()
        self.assertEqual(text.count("stroke-width=\"2\""), 3)
        self.assertIn("decode, arithmetic", text)
        decode = "decode batch %d context %d threads 1"
        self.assertEqual(set(rows), {
            "resident memory", "prefill 40 threads 1",
            *(decode % (batch, context) for batch in (1, 3) for context in (64, 200))})
        one, three = (rows[decode % (batch, 64)]["facts"] for batch in (1, 3))
        # Three requests share the weights that are not routed.
        self.assertLess(three["MB/token"], one["MB/token"])
        self.assertGreater(3 * three["MB/token"], one["MB/token"])
        memory = rows["resident memory"]["facts"]
        self.assertLessEqual(rows["resident memory"]["median"], memory["limit MiB"])
        earlier = self.path("earlier.json")
        earlier.write_text(self.path("report.json").read_text())
        _, text = self.report(*arguments, "--compare", earlier)
        self.assertIn("ratio", text)

    def test_a_report_of_another_kind_is_no_basis_for_a_comparison(self):
        other = self.path("other.json")
        other.write_text("{}")
        result = run("bench", "ceilings", "--thread-counts", 1, "--rounds", 1, "--compare", other)
        self.assertEqual(result.returncode, 2)
        self.assertIn(b"other.json", result.stderr)

    @unittest.skipIf("avx512_bf16" in CPU_FLAGS, "this CPU has every level")
    def test_a_kernel_level_beyond_the_cpu_is_refused_with_the_level_it_has(self):
        ids = self.path("ids.json")
        ids.write_text("[0, 5]")
        for command in (["bench", "ceilings"], ["bench", "kernels"], ["bench", "model"], ["serve"],
                        ["generate", DEMO_MODEL, "--tokens", ids, "--max-tokens", 1],
                        ["logits", DEMO_MODEL, "--tokens", ids, "--out", self.path("logits")]):
            result = run(*command, "--isa", "avx512_bf16")
            self.assertNotEqual(result.returncode, 0, command)
            self.assertIn(b"this CPU offers avx", result.stderr, command)

    def test_an_unknown_kernel_level_names_the_known_ones(self):
        result = run("bench", "ceilings", "--isa", "sse")
        self.assertEqual(result.returncode, 2)
        self.assertIn(b"avx512_bf16", result.stderr)


if __name__ == "__main__":
    unittest.main()
