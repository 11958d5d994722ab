"""The whole sampling surface over HTTP on the demo model, with its numbers: every distribution is that
of a plain sampler on the logits of `deepinfer logits`, and every token the one it draws."""

import json
import pathlib
import struct
import tempfile
import unittest

import sampling_reference as reference
import support
from serve_test import request
from support import DEMO_MODEL, Server, run

CONFIG = json.loads((DEMO_MODEL / "config.json").read_text())
VOCAB = CONFIG["text_config"]["vocab_size"]
BEGIN, END, IMAGE = CONFIG["bos_token_id"], CONFIG["eos_token_id"], CONFIG["image_token_id"]
NUM_TOKENS = 8
# fp32 results against double precision, of values down to about -30.
TOLERANCE = 2e-5

CASES = {
    "greedy": {"temperature": 0},
    "plain": {"seed": 11},
    "cold": {"seed": 12, "temperature": 0.4},
    "hot": {"seed": 13, "temperature": 1.9},
    "top_k": {"seed": 14, "top_k": 7, "temperature": 1.5},
    "top_p": {"seed": 15, "top_p": 0.8, "temperature": 1.5},
    "min_p": {"seed": 16, "min_p": 0.02, "temperature": 1.5},
    "all filters": {"seed": 17, "top_k": 40, "top_p": 0.95, "min_p": 0.001, "temperature": 1.3},
    "repetition": {"temperature": 0, "repetition_penalty": 1.7},
    "repetition reward": {"seed": 18, "repetition_penalty": 0.8},
    "frequency": {"temperature": 0, "frequency_penalty": 1.5},
    "presence": {"temperature": 0, "presence_penalty": 2.0},
    "presence reward": {"seed": 19, "presence_penalty": -1.25, "frequency_penalty": 0.5},
    "bias": {"seed": 20, "logit_bias": {"100": 6, "101": -3.5, "102": 7.25}},
    "forced by bias": {"temperature": 0, "logit_bias": {"4321": 100}},
    "forbidden by bias": {"temperature": 0, "logit_bias": {"0": -100}},
    "allowed": {"seed": 21, "allowed_token_ids": list(range(50, 90))},
    "allowed and banned": {"seed": 22, "allowed_token_ids": list(range(50, 60)),
                           "banned_token_ids": list(range(52, 58))},
    "min_tokens": {"temperature": 0, "min_tokens": 5, "ignore_eos": False,
                   "logit_bias": {str(END): 100}},
    "everything": {"seed": 23, "temperature": 1.2, "top_k": 500, "top_p": 0.99, "min_p": 1e-5,
                   "repetition_penalty": 1.2, "frequency_penalty": 0.4, "presence_penalty": 0.3,
                   "logit_bias": {"200": 3, "9": -1}, "banned_token_ids": [10, 11, 12]},
}


def value(logprob):
    return -9999 if logprob == float("-inf") else logprob


class Sampling(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--prefix-cache", "off")
        cls.addClassCleanup(cls.server.__exit__)
        case = json.loads((DEMO_MODEL / "cases.jsonl").read_text().splitlines()[77])
        # Cut off in a list of words, which repeats tokens.
        cls.prompt = case["prompt_ids"][:18]
        assert cls.prompt[0] == BEGIN and len(cls.prompt) < 120

    def complete(self, **fields):
        body = {"model": "deepinfer-tiny", "prompt": self.prompt, "max_tokens": NUM_TOKENS,
                "ignore_eos": True, "return_token_ids": True, **fields}
        status, answer = request(self.server, "POST", "/v1/completions", body)
        self.assertEqual(status, 200, answer)
        return answer

    def logits(self, ids):
        """Rows of logits behind every prefix of ids."""
        with tempfile.TemporaryDirectory() as folder:
            tokens, out = pathlib.Path(folder) / "ids.json", pathlib.Path(folder) / "logits"
            tokens.write_text(json.dumps(ids))
            result = run("logits", DEMO_MODEL, "--tokens", tokens, "--out", out, "--numerics",
                         "prod")
            self.assertEqual(result.returncode, 0, result.stderr)
            raw = out.read_bytes()
        values = struct.unpack("<%df" % (len(raw) // 4), raw)
        self.assertEqual(len(values), len(ids) * VOCAB)
        return [values[i:i + VOCAB] for i in range(0, len(values), VOCAB)]

    def check_list(self, got, distribution, num, token, where):
        """The best of a distribution {id: log-probability} and the token; strings may coincide."""
        best = sorted(distribution.values(), reverse=True)[:num] + [distribution[token]]
        self.assertGreaterEqual(len(got), min(len(best), num) // 2, where)
        for logprob in got.values():
            self.assertLess(min(abs(logprob - value(b)) for b in best + [float("-inf")]),
                            TOLERANCE * max(1, abs(logprob)), where)
        self.assertAlmostEqual(max(got.values()), best[0], delta=TOLERANCE, msg=where)

    def check_case(self, name, fields):
        answers = {mode: self.complete(logprobs=9, logprobs_mode=mode, **fields)["choices"][0]
                   for mode in ("raw", "processed")}
        ids = answers["raw"]["token_ids"]
        self.assertEqual(ids, answers["processed"]["token_ids"], name)
        rows = self.logits(self.prompt + ids)[len(self.prompt) - 1:-1]
        wanted = {**fields, "banned_token_ids": fields.get("banned_token_ids", []) + [IMAGE]}
        for at, (token, row) in enumerate(zip(ids, rows)):
            where = "%s, token %d" % (name, at)
            raw = dict(enumerate(reference.log_softmax(row)))
            z = reference.edited(row, self.prompt, ids[:at], wanted, END)
            final, kept = reference.processed(z, wanted)
            drawn = (reference.race(kept, fields["seed"], len(self.prompt) + at) if kept
                     else max(range(VOCAB), key=lambda i: (z[i], -i)))
            self.assertEqual(token, drawn, where)
            for mode, distribution in (("raw", raw), ("processed", final)):
                shown = answers[mode]["logprobs"]
                self.assertAlmostEqual(shown["token_logprobs"][at], distribution[token],
                                       delta=TOLERANCE * 30, msg=where + " " + mode)
                self.check_list(shown["top_logprobs"][at], distribution, 9, token,
                                where + " " + mode)
        return ids, answers["raw"]

    def test_every_parameter_shapes_the_distribution_and_decides_the_token(self):
        plain, _ = self.check_case("greedy", CASES["greedy"])
        for name, fields in CASES.items():
            ids, answer = self.check_case(name, fields)
            # The parameter was worth testing: it changed something.
            if name in ("repetition", "frequency", "presence", "forced by bias"):
                self.assertNotEqual(ids, plain, name)
            if name == "forced by bias":
                self.assertEqual(ids, [4321] * NUM_TOKENS)
            if name == "allowed and banned":
                self.assertLessEqual(set(ids), {50, 51, 58, 59})
            if name == "min_tokens":
                self.assertEqual((len(ids), ids[-1], answer["finish_reason"]), (6, END, "stop"))

    def test_bad_words_are_never_completed(self):
        plain = self.complete(temperature=0)["choices"][0]["token_ids"]
        text = request(self.server, "POST", "/detokenize", {"tokens": plain[0:2]})[1]["prompt"]
        spelled = [request(self.server, "POST", "/tokenize",
                           {"prompt": word, "add_special_tokens": False})[1]["tokens"]
                   for word in (text, " " + text)]
        fields = {"temperature": 0, "bad_words": [text]}
        ids = self.complete(**fields)["choices"][0]["token_ids"]
        rows = self.logits(self.prompt + ids)[len(self.prompt) - 1:-1]
        wanted = {"bad_word_ids": spelled, "banned_token_ids": [IMAGE]}
        for at, (token, row) in enumerate(zip(ids, rows)):
            z = reference.edited(row, self.prompt, ids[:at], wanted, END)
            self.assertEqual(token, max(range(VOCAB), key=lambda i: (z[i], -i)), at)
        for word in spelled:
            self.assertFalse(any(ids[i:i + len(word)] == word for i in range(len(ids))))

    def test_choices_draw_with_seeds_derived_from_the_request(self):
        answer = self.complete(seed=77, temperature=1.9, n=5)
        self.assertEqual([c["index"] for c in answer["choices"]], list(range(5)))
        self.assertEqual(answer["usage"]["prompt_tokens"], len(self.prompt))
        self.assertEqual(answer["usage"]["completion_tokens"], 5 * NUM_TOKENS)
        self.assertEqual(answer["usage"]["deepinfer"]["computed_tokens"], len(self.prompt))
        seen = set()
        for choice in answer["choices"]:
            ids = choice["token_ids"]
            seen.add(tuple(ids))
            seed = reference.derived_seed(77, choice["index"])
            rows = self.logits(self.prompt + ids)[len(self.prompt) - 1:-1]
            for at, (token, row) in enumerate(zip(ids, rows)):
                z = reference.edited(row, self.prompt, ids[:at], {"banned_token_ids": [IMAGE]}, END)
                kept = reference.weights(z, {"temperature": 1.9})
                self.assertEqual(token, reference.race(kept, seed, len(self.prompt) + at))
            if seed < 2 ** 63:
                alone = self.complete(seed=seed, temperature=1.9)
                self.assertEqual(alone["choices"][0]["token_ids"], ids)
        self.assertEqual(len(seen), 5)
        # Log-probabilities rank choices only where more are generated than asked for.
        shown = self.complete(seed=77, temperature=1.9, n=5, logprobs=1)["choices"]
        self.assertEqual([c["token_ids"] for c in shown],
                         [c["token_ids"] for c in answer["choices"]])

    def test_echo_shows_the_prompt_with_its_log_probabilities(self):
        answer = self.complete(echo=True, logprobs=5, temperature=0, max_tokens=4)["choices"][0]
        shown = answer["logprobs"]
        plain = self.complete(logprobs=5, temperature=0, max_tokens=4)["choices"][0]
        self.assertTrue(answer["text"].endswith(plain["text"]))
        ids = self.prompt + plain["token_ids"]
        rows = self.logits(ids)
        values = shown["token_logprobs"]
        # The begin token is part of the prompt that was sent, so it is shown; nothing is before it.
        self.assertEqual(len(values), len(ids))
        self.assertIsNone(values[0])
        for at in range(1, len(ids)):
            raw = reference.log_softmax(rows[at - 1])
            self.assertAlmostEqual(values[at], raw[ids[at]], delta=TOLERANCE * 30, msg=at)
            best = sorted(raw, reverse=True)[:5]
            self.assertAlmostEqual(max(shown["top_logprobs"][at].values()),
                                   best[0], delta=TOLERANCE * 30)

    def test_stop_token_ids_end_at_their_first_appearance(self):
        plain = self.complete(temperature=0)["choices"][0]["token_ids"]
        stop = plain[5]
        answer = self.complete(temperature=0, stop_token_ids=[stop])["choices"][0]
        self.assertEqual(answer["token_ids"], plain[:plain.index(stop) + 1])
        self.assertEqual((answer["finish_reason"], answer["stop_reason"]), ("stop", stop))

    def test_values_out_of_range_name_their_field(self):
        for field, bad in (("temperature", 2.1), ("temperature", -0.1), ("top_p", 0), ("top_p", 1.1),
                           ("top_k", -2), ("min_p", 1.5), ("repetition_penalty", 0),
                           ("repetition_penalty", 2.5), ("frequency_penalty", 3),
                           ("presence_penalty", -2.5), ("logit_bias", {"1": 101}),
                           ("logit_bias", {str(VOCAB): 1}), ("allowed_token_ids", [VOCAB]),
                           ("banned_token_ids", [-1]), ("min_tokens", -1), ("n", 0),
                           ("logprobs", 1001), ("seed", -1), ("logprobs_mode", "cooked"),
                           ("sampling_mode", "loose"), ("stop_token_ids", [VOCAB])):
            body = {"model": "deepinfer-tiny", "prompt": [BEGIN, 5], "max_tokens": 2, field: bad}
            status, answer = request(self.server, "POST", "/v1/completions", body)
            self.assertEqual(status, 400, (field, bad, answer))
            self.assertIn(field, answer["error"]["message"], (field, bad))


if __name__ == "__main__":
    unittest.main()
