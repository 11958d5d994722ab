"""The tools for a cache store, on a store written by the script that defines its bytes."""

import json
import pathlib
import sys
import tempfile
import time
import unittest

import support
from support import ROOT, run

sys.path.insert(0, str(ROOT / "tests/unit/kvcache"))
import format_vectors  # noqa: E402

PAGE = format_vectors.PAGE


class KvTools(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.root = pathlib.Path(self.dir.name) / "kv"
        namespace = format_vectors.NAMESPACE.hex()
        top = self.root / "v1" / namespace[:16]
        self.folder = top / f"local-{format_vectors.EPOCH:016x}"
        self.folder.mkdir(parents=True)
        (top / "ns.toml").write_text(f'namespace = "{namespace}"\n')
        self.segment = self.folder / f"seg-{format_vectors.NUMBER:010d}.seg"
        self.write_segment(age_hours=0, left_hours=100)

    def write_segment(self, age_hours, left_hours):
        now = int(time.time())
        format_vectors.CREATED_NS = (now - age_hours * 3600) * 10**9
        format_vectors.SEALED_NS = format_vectors.CREATED_NS
        format_vectors.BUCKET_HOUR = now // 3600 + left_hours
        self.segment.write_bytes(format_vectors.segment())

    def damage(self, offset):
        data = bytearray(self.segment.read_bytes())
        data[offset] ^= 1
        self.segment.write_bytes(data)

    def kv(self, *args, status=0):
        result = run("kv", args[0], "--dir", self.root, "--json", *args[1:])
        self.assertEqual(result.returncode, status, result.stderr)
        return json.loads(result.stdout) if result.stdout else None

    def blocks(self):
        return self.kv("ls", "--blocks")["items"]

    def test_stats_and_ls_show_what_is_there(self):
        [space] = self.kv("stats")["namespaces"]
        self.assertEqual(space["namespace"], format_vectors.NAMESPACE.hex())
        self.assertEqual((space["blocks"], space["segments"]), (2, 1))
        self.assertEqual(space["blocks_by_class"]["agent"], 2)
        self.assertEqual(space["bytes"], format_vectors.SEGMENT_PAGES * PAGE)
        self.assertEqual([(b["key"], b["block"]) for b in self.blocks()],
                         [(format_vectors.key(n).hex(), n) for n in range(2)])
        [segment] = self.kv("ls")["items"]
        self.assertEqual((segment["state"], segment["class"]), ("seg", "agent"))
        self.assertEqual(self.kv("ls", "--class", "chat")["items"], [])
        child = self.kv("ls", "--prefix-key", format_vectors.key(1).hex())["items"]
        self.assertEqual(len(child), 1)
        text = run("kv", "stats", "--dir", self.root)
        self.assertIn(b"blocks    2", text.stdout)
        self.assertIn(b"owners    local 1", text.stdout)
        self.assertEqual(space["segments_by_owner"], {"local": 1})
        self.assertEqual(len(self.kv("ls", "--owner", "local")["items"]), 1)
        self.assertEqual(self.kv("ls", "--owner", "other")["items"], [])
        self.assertEqual(self.kv("ls", "--ns", "0" * 16)["items"], [])

    def test_the_store_of_serve_is_the_default(self):
        home = self.root.parent / "cache"
        (home / "deepinfer").mkdir(parents=True)
        self.root.rename(home / "deepinfer" / "kv")
        shown = run("kv", "stats", "--json", env={"XDG_CACHE_HOME": str(home)})
        self.assertEqual(json.loads(shown.stdout)["namespaces"][0]["blocks"], 2)

    def test_a_namespace_is_erased_as_a_whole(self):
        namespace = format_vectors.NAMESPACE.hex()
        self.kv("erase", "--ns", "0" * 16, "--yes", status=1)
        self.assertEqual(self.kv("erase", "--ns", namespace[:6], "--yes"), {"erased_blocks": 2})
        self.assertEqual(list((self.root / "v1").iterdir()), [])

    def test_verify_finds_and_repairs_a_damaged_record(self):
        self.assertEqual(self.kv("verify")["problems"], [])
        self.damage(PAGE + 300)
        report = self.kv("verify", status=1)
        self.assertEqual([(p["record"], p["problem"]) for p in report["problems"]],
                         [(0, "section")])
        self.assertEqual(self.kv("verify", "--repair")["problems"], [])
        self.assertEqual([b["block"] for b in self.blocks()], [1])

    def test_verify_names_a_broken_superblock_and_unknown_files(self):
        self.damage(100)
        (self.folder / "note.txt").write_text("not ours")
        problems = [p["problem"] for p in self.kv("verify", status=1)["problems"]]
        self.assertEqual(len(problems), 2, problems)
        self.assertTrue(any("superblock" in p for p in problems), problems)
        self.assertIn("unknown file", problems)

    def test_gc_removes_what_has_expired_and_says_so_first(self):
        self.assertEqual(self.kv("gc")["actions"], [])
        self.assertEqual(len(self.blocks()), 2)
        for path in self.root.glob("v1/*/*/seg-*"):
            path.unlink()
        self.write_segment(age_hours=1000, left_hours=-1)
        [planned] = self.kv("gc", "--dry-run")["actions"]
        self.assertEqual((planned["action"], planned["reason"]), ("remove", "expired"))
        self.assertEqual(len(self.blocks()), 2)
        self.assertEqual(len(self.kv("gc")["actions"]), 1)
        self.assertEqual(self.blocks(), [])

    def test_erase_takes_a_chain_off_the_disk(self):
        refused = run("kv", "erase", "--dir", self.root, "--prefix-key",
                      format_vectors.key(0).hex())
        self.assertEqual(refused.returncode, 2)
        self.assertEqual(len(self.blocks()), 2)
        erased = self.kv("erase", "--prefix-key", format_vectors.key(0).hex(), "--yes")
        self.assertEqual(erased["erased_blocks"], 2)
        self.assertEqual(self.blocks(), [])
        for path in self.root.rglob("seg-*"):
            self.assertNotIn(format_vectors.key(1), path.read_bytes())

    def age_out(self):
        """As if the segments' buckets were long over."""
        for path in self.root.glob("v1/*/*/seg-*"):
            data = bytearray(path.read_bytes())
            if data[20] != 3:  # class pinned has no bucket
                data[88:96] = (1).to_bytes(8, "little")
                data[4092:4096] = format_vectors.crc32c(bytes(data[:4092])).to_bytes(4, "little")
                path.write_bytes(data)

    def test_pinned_chains_outlive_their_class(self):
        key = format_vectors.key(1).hex()
        self.assertEqual(self.kv("pin", "--prefix-key", key)["pinned_blocks"], 2)
        self.assertEqual(self.kv("pin", "--prefix-key", key)["pinned_blocks"], 0)
        self.age_out()
        self.kv("gc")
        self.assertEqual([b["class"] for b in self.blocks()], ["pinned"] * 2)
        self.assertEqual(self.kv("verify")["problems"], [])
        removed = self.kv("pin", "--remove", "--prefix-key", key)
        self.assertEqual((removed["chain_blocks"], removed["unpinned_blocks"]), (2, 2))
        self.assertEqual([b["class"] for b in self.blocks()], ["chat"] * 2)
        self.kv("pin", "--prefix-key", "ab" * 32, status=1)

    def test_export_and_import_carry_blocks_to_another_store(self):
        file = self.root.parent / "blocks"
        namespace = format_vectors.NAMESPACE.hex()
        exported = self.kv("export", "--ns", namespace[:6], file)
        self.assertEqual((exported["blocks"], exported["namespace"]), (2, namespace))
        self.assertEqual(exported["bytes"], file.stat().st_size)
        before = [(b["key"], b["block"], b["class"], b["replay_gen"], b["tenant_tag"])
                  for b in self.blocks()]
        self.root = self.root.parent / "other"
        self.root.mkdir()
        self.assertEqual(self.kv("import", file)["imported"], 2)
        again = self.kv("import", file)
        self.assertEqual((again["imported"], again["existing"]), (0, 2))
        after = [(b["key"], b["block"], b["class"], b["replay_gen"], b["tenant_tag"])
                 for b in self.blocks()]
        self.assertEqual(sorted(after), sorted(before))
        self.assertEqual(self.kv("verify")["problems"], [])

    def test_export_of_a_chain_ends_at_its_block(self):
        file = self.root.parent / "blocks"
        exported = self.kv("export", "--prefix-key", format_vectors.key(0).hex(), file)
        self.assertEqual(exported["blocks"], 1)
        self.root = self.root.parent / "other"
        self.root.mkdir()
        self.assertEqual(self.kv("import", file)["imported"], 1)

    def test_bad_records_are_left_out_and_damaged_files_refused(self):
        file = self.root.parent / "blocks"
        self.damage(PAGE + 300)
        exported = self.kv("export", "--ns", "", file, status=1)
        self.assertEqual((exported["blocks"], exported["bad_records"]), (1, 1))
        whole = file.read_bytes()
        self.root = self.root.parent / "other"
        self.root.mkdir()
        for damaged in (whole[:-20], whole[:len(whole) // 2], b"not an export"):
            file.write_bytes(damaged)
            self.assertEqual(run("kv", "import", "--dir", self.root, file).returncode, 1)
        file.write_bytes(whole)
        self.assertEqual(self.kv("import", file)["records"], 1)

    def test_keys_encrypt_and_erasing_destroys_them(self):
        keys = self.root.parent / "keys"
        tag = self.kv("key", "--tenant", "acme", "--key-file", keys)["tenant_tag"]
        self.assertEqual(keys.stat().st_mode & 0o777, 0o600)
        self.assertIn(tag, keys.read_text())
        self.kv("key", "--tenant", "acme", "--key-file", keys, status=2)
        self.kv("erase", "--tenant", "acme", "--key-file", keys, "--yes")
        self.assertEqual(keys.read_text(), f"{tag} destroyed\n")

    def test_wrong_use_and_missing_stores_are_told_apart(self):
        self.assertEqual(run("kv", "ls", "--nothing").returncode, 2)
        missing = run("kv", "stats", "--dir", self.root / "nothing")
        self.assertEqual(missing.returncode, 1)

    def test_replay_prints_the_curve_and_draws_it(self):
        trace = self.root / "trace.jsonl"
        rows = [([1, 2], 1024), ([1, 2, 3], 1500), ([9], 512), ([1, 2, 3], 1500)]
        trace.write_text("".join(json.dumps({"timestamp": i, "input_length": length,
                                             "hash_ids": ids}) + "\n"
                                 for i, (ids, length) in enumerate(rows)))
        svg = self.root / "curve.svg"
        result = run("kv", "replay", trace, "--block-tokens", "512", "--json", "--svg", svg)
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual((report["requests"], report["unique_blocks"]), (4, 4))
        self.assertAlmostEqual(report["lru"][-1]["hit_rate"], (1024 + 1500) / 4536, places=3)
        self.assertEqual(report["lru"][-1]["bound"], report["lru"][-1]["hit_rate"])
        self.assertTrue(all(p["bound"] >= p["hit_rate"] for p in report["lru"]))
        self.assertLessEqual(report["store"][-1]["hit_rate"], report["store_unlimited"])
        self.assertAlmostEqual(report["store_unlimited"], (1024 + 1500) / 4536, places=3)
        self.assertTrue(all(t["store_hit_rate"] >= t["hit_rate"] for t in report["ttl"]))
        self.assertEqual(svg.read_text().count("<polyline"), 3)
        plain = run("kv", "replay", trace, "--block-tokens", "512")
        self.assertIn(b"without a limit", plain.stdout)
        trace.write_text("{}\n")
        self.assertEqual(run("kv", "replay", trace).returncode, 2)


if __name__ == "__main__":
    unittest.main()
