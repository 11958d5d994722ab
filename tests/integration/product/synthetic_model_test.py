"""The synthetic checkpoints of tools/make_bench_model.py: the same on every machine, and they run."""

import hashlib
import http.client
import json
import pathlib
import subprocess
import tempfile
import unittest

from support import DEMO_MODEL, ROOT, TIMEOUT_S, Server, floats, run

# Debian's own: it has numpy, the tests' environment has not.
GENERATOR = ["/usr/bin/python3", str(ROOT / "tools/make_bench_model.py")]
MINI_SHA256 = "144b1aad02e1f0c3560dbd83ae3ae4b827d636ba37ce5a2f90d4955250d4d8a0"
VOCAB = 2048


class SyntheticModel(unittest.TestCase):
    def test_mini_has_the_recorded_bytes_and_finite_logits(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "mini"
            subprocess.run([*GENERATOR, model, "--preset", "mini"], check=True,
                           capture_output=True, timeout=TIMEOUT_S)
            shard = (model / "model-00001-of-00001.safetensors").read_bytes()
            self.assertEqual(hashlib.sha256(shard).hexdigest(), MINI_SHA256)
            ids, logits = pathlib.Path(folder) / "ids.json", pathlib.Path(folder) / "logits"
            ids.write_text(json.dumps([0, *range(300, 340)]))
            result = run("logits", model, "--tokens", ids, "--out", logits)
            self.assertEqual(result.returncode, 0, result.stderr)
            rows = floats(logits.read_bytes())
            self.assertEqual(len(rows), 41 * VOCAB)
            self.assertGreater(max(rows[-VOCAB:]), min(rows[-VOCAB:]))
            with Server("--served-model-name", "mini", model=model) as server:
                body = {"model": "mini", "max_tokens": 4, "ignore_eos": True,
                        "messages": [{"role": "user", "content": "hello"}]}
                connection = http.client.HTTPConnection("127.0.0.1", server.port,
                                                        timeout=TIMEOUT_S)
                connection.request("POST", "/v1/chat/completions", json.dumps(body),
                                   {"Content-Type": "application/json"})
                response = connection.getresponse()
                answer = json.loads(response.read())
                connection.close()
                self.assertEqual(response.status, 200, answer)
                self.assertEqual(answer["usage"]["completion_tokens"], 4)
                self.assertEqual(server.stop(), 0)

    def test_a_real_checkpoint_has_the_names_and_shapes_of_the_generator(self):
        check = subprocess.run([*GENERATOR, "--check", DEMO_MODEL], capture_output=True,
                               timeout=TIMEOUT_S)
        self.assertEqual(check.returncode, 0, check.stdout)


if __name__ == "__main__":
    unittest.main()
