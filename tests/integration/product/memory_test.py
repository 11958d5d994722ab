"""A server holds its checkpoint, its cache and little more; on the demo model."""

import json
import unittest
import urllib.request

import support

MIB = 1 << 20
# Code, stacks, tables of the tokenizer, scratch of a step: everything that is no cache.
OTHER_BYTES = 64 * MIB


def resident(pid, field):
    with open("/proc/%d/status" % pid, encoding="ascii") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0


class Memory(unittest.TestCase):
    def test_anonymous_memory_is_the_cache_and_a_fixed_rest(self):
        with support.Server() as server:
            event = server.wait_event("model.memory")
            limit = event["kv_cache_bytes"] + OTHER_BYTES
            self.assertGreater(event["kv_cache_bytes"], 0)
            self.assertGreater(event["checkpoint_bytes"], 10 * MIB)
            self.assertLessEqual(event["resident_anonymous_bytes"], limit)
            body = {"model": "deepinfer-tiny", "prompt": "memory " * 400, "max_tokens": 8}
            request = urllib.request.Request(server.url + "/v1/completions",
                                             json.dumps(body).encode(),
                                             {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=support.TIMEOUT_S) as answer:
                self.assertEqual(answer.status, 200)
            self.assertLessEqual(resident(server.process.pid, "RssAnon"), limit)
            weights = 1.05 * event["checkpoint_bytes"] + limit
            self.assertLessEqual(resident(server.process.pid, "VmRSS"),
                                 weights + resident(server.process.pid, "VmExe")
                                 + resident(server.process.pid, "VmLib"))


if __name__ == "__main__":
    unittest.main()
