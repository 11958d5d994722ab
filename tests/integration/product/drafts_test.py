"""Drafts as users meet them: a checkpoint without draft layers, and the calibration of confidences."""

import http.client
import json
import pathlib
import shutil
import struct
import tempfile
import unittest

import support
from support import DEMO_MODEL, Server, read_safetensors, run

CASES = DEMO_MODEL / "cases.jsonl"


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def without_draft_layers(folder):
    """A copy of the demo model that ends at its last layer."""
    model = pathlib.Path(folder) / "plain"
    shutil.copytree(DEMO_MODEL, model)
    config = json.loads((model / "config.json").read_text())
    text = config["text_config"]
    del text["compress_ratios"][-text["num_nextn_predict_layers"]:]
    text["num_nextn_predict_layers"] = 0
    (model / "config.json").write_text(json.dumps(config))
    index_path = model / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    index["weight_map"] = {k: v for k, v in index["weight_map"].items() if not k.startswith("mtp.")}
    index_path.write_text(json.dumps(index))
    for shard in model.glob("*.safetensors"):
        tensors = read_safetensors(shard)
        write_safetensors(shard, {k: v for k, v in tensors.items() if not k.startswith("mtp.")})
    return model


def post(server, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=support.TIMEOUT_S)
    connection.request("POST", "/v1/chat/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    response = connection.getresponse()
    raw = response.read().decode()
    connection.close()
    assert response.status == 200, raw
    return raw


def chat(text="What is a KV cache?", **fields):
    return {"model": "deepseek-flash", "temperature": 0, "thinking": {"type": "disabled"},
            "max_tokens": 60, "messages": [{"role": "user", "content": text}], **fields}


def answer(server, **fields):
    return json.loads(post(server, chat(**fields)))


WEATHER = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"]}}}]


def bodies():
    """Requests whose ends and parts fall inside steps that decide several tokens."""
    yield from (chat(max_tokens=n) for n in range(1, 8))
    yield chat(logprobs=True, top_logprobs=3)
    yield chat(logprobs=True, top_logprobs=2, temperature=0.8, seed=4)
    for stop in ("cache", "e", " stores", "the keys", ".", "no such text", ["values", "and"]):
        yield chat(stop=stop)
        yield chat(stop=stop, logprobs=True, top_logprobs=1)
    for seed in range(4):
        yield chat("Hello", temperature=1.0, seed=seed, n=2)
    yield chat("How is the weather in Delhi today?", tools=WEATHER)
    yield chat("How is the weather in Paris today?", tools=WEATHER, tool_choice="required",
               temperature=0.7, seed=3)
    yield chat("How is the weather in Delhi today?", tools=WEATHER, max_tokens=200,
               thinking={"type": "enabled"})
    yield chat(thinking={"type": "enabled"}, max_tokens=200)
    yield chat("Give me a name as JSON.", response_format={"type": "json_object"})


def comparable(body, raw):
    """What an answer says, without what differs between any two requests."""
    if not body.get("stream"):
        choices = json.loads(raw)["choices"]
    else:
        choices = {}
        for line in raw.split("\n\n"):
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                merge(choices.setdefault(choice["index"], {}), choice)
        choices = [choices[i] for i in sorted(choices)]
    return scrub(choices)


def merge(whole, part):
    """Adds a streamed part: texts and lists grow."""
    for key, value in part.items():
        old = whole.get(key)
        if key == "index" or value is None:
            whole.setdefault(key, value)
        elif isinstance(value, dict):
            if old is None:
                old = whole[key] = {}
            merge(old, value)
        elif isinstance(value, list) and value and "index" in value[0]:
            # Parts of tool calls.
            calls = whole.setdefault(key, {})
            for call in value:
                merge(calls.setdefault(call["index"], {}), call)
        elif isinstance(value, (str, list)) and old and key not in ("role", "type", "id"):
            whole[key] = old + value
        else:
            whole[key] = value


def scrub(value):
    if isinstance(value, dict):
        return {k: scrub(v) for k, v in value.items() if k != "id"}
    if isinstance(value, list):
        return [scrub(v) for v in value]
    return value


class StepsOfSeveralTokens(unittest.TestCase):
    def test_every_answer_is_the_one_without_drafts(self):
        with Server("--spec", "off") as plain, Server("--verify", "fixed") as drafted:
            accepted = 0
            for body in bodies():
                want = post(plain, body)
                got = post(drafted, body)
                self.assertEqual(comparable(body, got), comparable(body, want), body)
                usages = [json.loads(raw)["usage"] for raw in (got, want)]
                self.assertEqual(usages[0]["completion_tokens"], usages[1]["completion_tokens"])
                # Of a prediction that the client sends, not of the server's drafts.
                details = usages[0]["completion_tokens_details"]
                self.assertEqual((details["accepted_prediction_tokens"],
                                  details["rejected_prediction_tokens"]), (0, 0))
                spent = usages[0]["deepinfer"]
                self.assertLessEqual(spent["draft_accepted_tokens"], spent["drafted_tokens"])
                self.assertEqual(usages[1]["deepinfer"]["drafted_tokens"], 0)
                accepted += spent["draft_accepted_tokens"]
                streamed = dict(body, stream=True)
                self.assertEqual(comparable(streamed, post(drafted, streamed)),
                                 comparable(streamed, post(plain, streamed)), body)
            self.assertGreater(accepted, 100)


class WithoutDraftLayers(unittest.TestCase):
    def test_the_server_says_so_and_gives_the_same_answers(self):
        with Server() as server:
            want = answer(server)
            self.assertFalse([e for e in server.events if e.get("event") == "engine.no_drafts"])
        with tempfile.TemporaryDirectory() as folder:
            # --spec dspark is the default.
            with Server(model=without_draft_layers(folder)) as server:
                self.assertIn("no draft layers", server.wait_event("engine.no_drafts")["reason"])
                got = answer(server)
                self.assertEqual(server.stop(), 0)
        self.assertEqual(got["choices"][0]["message"], want["choices"][0]["message"])
        self.assertEqual(got["usage"]["deepinfer"]["drafted_tokens"], 0)

    def test_there_is_nothing_to_calibrate(self):
        with tempfile.TemporaryDirectory() as folder:
            result = run("calibrate", without_draft_layers(folder), "--prompts", CASES)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(b"no draft layers", result.stderr)


class Calibration(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def calibrate(self, *args):
        # Some of every task.
        prompts = self.folder / "prompts.jsonl"
        prompts.write_text("\n".join(CASES.read_text().splitlines()[::6]) + "\n")
        return run("calibrate", DEMO_MODEL, "--prompts", prompts, *args)

    def test_the_fit_is_written_and_the_engine_reads_it(self):
        out = self.folder / "calibration.json"
        result = self.calibrate("--out", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        fit = json.loads(out.read_text())
        self.assertEqual(len(fit["temperatures"]), 5)
        self.assertTrue(all(t > 0 for t in fit["temperatures"]))
        self.assertGreater(fit["num_samples"], 100)
        # Confidences of a trained head are probabilities, more or less.
        self.assertLess(fit["ece_before"], 0.3)
        self.assertLess(fit["ece_after"], 0.15)
        self.assertIn(b"calibration error", result.stdout)

        ids = self.folder / "ids.json"
        ids.write_text(json.dumps(json.loads(CASES.read_text().splitlines()[0])["prompt_ids"]))
        generate = ("generate", DEMO_MODEL, "--tokens", ids, "--max-tokens", 24)
        calibrated = run(*generate, "--confidence-calibration", out)
        self.assertEqual(calibrated.returncode, 0, calibrated.stderr)
        self.assertEqual(calibrated.stdout, run(*generate).stdout)

    def test_a_file_that_does_not_fit_is_refused(self):
        ids = self.folder / "ids.json"
        ids.write_text("[0, 300, 301]")
        bad = self.folder / "bad.json"
        for text, reason in (("{}", b"temperatures"), ("[1]", b"JSON object"),
                             ('{"temperatures": [1, 1]}', b"5 positive numbers"),
                             ('{"temperatures": [1, 1, 1, 1, 0]}', b"positive numbers"),
                             ('{"temperatures": [1, 1, "x", 1, 1]}', b"positive numbers")):
            bad.write_text(text)
            result = run("generate", DEMO_MODEL, "--tokens", ids, "--max-tokens", 2,
                         "--confidence-calibration", bad)
            self.assertNotEqual(result.returncode, 0, text)
            self.assertIn(reason, result.stderr, text)
        result = run("generate", DEMO_MODEL, "--tokens", ids, "--max-tokens", 2,
                     "--confidence-calibration", self.folder / "missing.json")
        self.assertIn(b"missing.json", result.stderr)

    def test_bad_prompts_are_named(self):
        prompts = self.folder / "prompts.jsonl"
        prompts.write_text('{"prompt_ids": [0, 300]}\n{"ids": [1]}\n')
        result = run("calibrate", DEMO_MODEL, "--prompts", prompts)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(b"prompts.jsonl line 2", result.stderr)


if __name__ == "__main__":
    unittest.main()
