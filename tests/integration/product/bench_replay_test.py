"""`bench replay` on the demo model: bounded replays stay close to exact runs (numerics.md §6)."""

import pathlib
import tempfile
import unittest
import xml.etree.ElementTree

from support import run

# The bound of numerics.md §6 on the mean over all tokens, whose table stays below 0.007; these
# questions come to 0.001 to 0.002. Single tokens may be far off.
LARGEST_MEAN_KL = 0.01
LEAST_EQUAL_ANSWERS = 0.6


class BenchReplay(unittest.TestCase):
    def test_answers_behind_bounded_replays_stay_close(self):
        with tempfile.TemporaryDirectory() as folder:
            picture = pathlib.Path(folder) / "replay.svg"
            result = run("bench", "replay", "--questions", 8, "--depths", "256,512", "--replays",
                         "1,2", "--max-tokens", 16, "--plot", picture)
            self.assertEqual(result.returncode, 0, result.stderr)
            svg = xml.etree.ElementTree.parse(picture).getroot()
        points = [e for e in svg.iter() if e.tag.endswith("circle")]
        lines = result.stdout.decode().splitlines()[2:]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        # Two replays need a hit of 256 tokens twice.
        self.assertEqual([(r[0], r[1]) for r in rows], [("256", "1"), ("512", "1"), ("512", "2")])
        self.assertEqual(len(points), len(rows))
        for row in rows:
            self.assertGreater(int(row[2]), 40)
            self.assertLess(float(row[3]), LARGEST_MEAN_KL)
            self.assertGreaterEqual(float(row[4]), float(row[3]))
            equal, answers = row[6].split(" of ")
            self.assertGreaterEqual(int(equal) / int(answers), LEAST_EQUAL_ANSWERS)
        # A replay of one window is not exact: all zeros would mean that nothing was replayed.
        self.assertGreater(max(float(row[4]) for row in rows), 0)

    def test_wrong_use_is_refused(self):
        for args in (["--depths", "200"], ["--depths", "128"], ["--cases", "/nowhere"]):
            result = run("bench", "replay", *args)
            self.assertNotEqual(result.returncode, 0)
            self.assertTrue(result.stderr)


if __name__ == "__main__":
    unittest.main()
