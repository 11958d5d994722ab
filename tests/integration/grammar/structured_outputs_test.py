#!/usr/bin/env python3
"""Structured outputs through the real server: answers under random JSON Schemas are valid for an
independent validator, appending forced tokens changes none of them, and requests whose grammar
exceeds the limits fail alone.

usage: structured_outputs_test.py [--all] BINARY        --all: every schema instead of a sample
"""

import concurrent.futures
import http.client
import json
import pathlib
import sys
import unittest
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "product"))
import support
from support import Server

from grammar_schemas_test import SEED, format_checker, judge
from schema_generator import KINDS, generate

ALL = "--all" in sys.argv
if ALL:
    sys.argv.remove("--all")
NUM_SCHEMAS = 351
# Four of every kind.
SAMPLE = NUM_SCHEMAS if ALL else 4 * len(KINDS)
CLIENTS = 8
MAX_TOKENS = 400
# Of the answers; the others ran into max_tokens, as a small model under a foreign grammar may.
MIN_FINISHED = 0.8


def post(server, body, path="/v1/chat/completions"):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=support.TIMEOUT_S)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    raw = response.read()
    connection.close()
    return response.status, json.loads(raw)


def in_parallel(function, items):
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(function, items))


def chat(text="Give me an example as JSON.", **fields):
    return {"model": "deepinfer-tiny", "thinking": {"type": "disabled"}, "max_tokens": MAX_TOKENS,
            "messages": [{"role": "user", "content": text}], **fields}


def with_uri_references(value):
    """The schema with its references as URIs: only ASCII."""
    if isinstance(value, list):
        return [with_uri_references(v) for v in value]
    if not isinstance(value, dict):
        return value
    return {k: urllib.parse.quote(v, safe="#/$~%") if k == "$ref" and isinstance(v, str)
            else with_uri_references(v) for k, v in value.items()}


def closing_bias(server):
    """Makes the model end strings, arrays and objects, which it seldom does by itself."""
    bias = {}
    for text, weight in (('"', 6), ('"}', 4), ("}", 4), ("]", 4), (" ", -4), ("\n", -8)):
        status, answer = post(server, {"prompt": text, "add_special_tokens": False}, "/tokenize")
        assert status == 200, answer
        tokens = answer["tokens"]
        if len(tokens) == 1:
            bias[str(tokens[0])] = weight
    return bias


class SchemaAnswers(unittest.TestCase):
    """What both tests look at is made once: the answers of two servers to the same requests."""

    @classmethod
    def setUpClass(cls):
        cls.schemas = [with_uri_references(s) for s in generate(SAMPLE, SEED)]
        cls.answers = {}
        for jump in ("on", "off"):
            # Compilations are not what is tested here, and the machine may be busy.
            with Server("--jump-forward", jump, "--grammar-timeout", 60) as server:
                bias = closing_bias(server)
                requests = [
                    chat(seed=i, temperature=(0.3, 0.7, 1.0)[i % 3], logit_bias=bias,
                         response_format={"type": "json_schema", "json_schema":
                                          {"name": "s", "schema": schema}})
                    for i, schema in enumerate(cls.schemas)]
                cls.answers[jump] = in_parallel(lambda body: post(server, body), requests)

    def test_answers_are_valid_for_an_independent_validator(self):
        checker = format_checker()
        finished = judged = 0
        for schema, (status, answer) in zip(self.schemas, self.answers["on"]):
            self.assertEqual(status, 200, (schema, answer))
            choice = answer["choices"][0]
            if choice["finish_reason"] != "stop":
                self.assertEqual(choice["finish_reason"], "length")
                continue
            finished += 1
            fault = judge(schema, choice["message"]["content"], checker)
            self.assertIsNone(fault, (schema, choice["message"]["content"]))
            judged += 1
        print(f"{judged} of {len(self.schemas)} answers judged, the others ran into max_tokens")
        self.assertGreaterEqual(finished, MIN_FINISHED * len(self.schemas))

    def test_appending_forced_tokens_changes_no_answer(self):
        for schema, with_jumps, without in zip(self.schemas, self.answers["on"],
                                               self.answers["off"]):
            choices = [answer[1]["choices"][0] for answer in (with_jumps, without)]
            self.assertEqual(choices[0]["message"]["content"], choices[1]["message"]["content"],
                             schema)
            self.assertEqual(choices[0]["finish_reason"], choices[1]["finish_reason"])


def doubled_union(levels):
    schema = {"type": "integer"}
    for level in range(levels):
        schema = {"anyOf": [{"type": "object", "properties": {f"p{level}": schema}},
                            {"type": "array", "items": schema}]}
    return schema


def pathological_bodies():
    """Grammars that no compiler can be trusted with, each in the field that brings it. Whether the
    first ones exceed a limit depends on the machine."""
    depth = 300_000
    optional = {f"p{i}": {"type": "string", "pattern": "^(a{1,200}b?){1,200}$"} for i in range(400)}
    return {
        "nested repetition": {"structured_outputs":
                              {"regex": "(((a{1,999}){1,999}){1,999}){1,999}"}},
        "deep expression": {"structured_outputs": {"regex": "(" * depth + "a" + ")" * depth}},
        "deep grammar": {"grammar": "root ::= " + "(" * depth + '"a"' + ")" * depth},
        "patterns of repetitions": {"guided_json": {"type": "object", "properties": optional}},
        "doubling unions": {"guided_json": doubled_union(16)},
        "a reference to nothing": {"guided_json": {"$ref": "#/$defs/missing"}},
    }


# Nested deeper than any stack, or wrong.
MUST_FAIL = ("deep expression", "deep grammar", "a reference to nothing")


class Limits(unittest.TestCase):
    def test_pathological_grammars_fail_alone(self):
        with Server("--grammar-timeout", 1, "--grammar-max-mb", 8) as server:
            plain = chat("What is a KV cache?", temperature=0)
            want = post(server, plain)[1]["choices"][0]["message"]["content"]
            bodies = list(pathological_bodies().items())
            # A plain request beside every pathological one.
            mix = [body for name, extra in bodies for body in (chat(**extra), plain)]
            answers = in_parallel(lambda body: post(server, body), mix)
            num_refused = 0
            for (name, _), (status, answer) in zip(bodies, answers[0::2]):
                if status == 200:
                    self.assertNotIn(name, MUST_FAIL)
                    continue
                num_refused += 1
                self.assertEqual(status, 400, (name, answer))
                self.assertEqual(answer["error"]["code"], "invalid_schema", name)
                self.assertTrue(answer["error"]["param"], name)
            self.assertGreaterEqual(num_refused, len(MUST_FAIL))
            for status, answer in answers[1::2]:
                self.assertEqual(status, 200)
                self.assertEqual(answer["choices"][0]["message"]["content"], want)
            status, answer = post(server, chat(structured_outputs={"choice": ["yes", "no"]}))
            self.assertEqual(status, 200)
            self.assertIn(answer["choices"][0]["message"]["content"], ("yes", "no"))

    def test_grammars_that_are_endless_or_slow_to_follow_fail_alone(self):
        endless = {"grammar": 'root ::= "a" root'}
        # 2^24 bytes without a choice.
        rules = ["root ::= r0"] + [f"r{i} ::= r{i + 1} r{i + 1}" for i in range(24)]
        long = {"grammar": "\n".join(rules + ['r24 ::= "a"'])}
        ambiguous = {"grammar": 'root ::= s\ns ::= s s | "a"'}
        counted = {"structured_outputs": {"regex": "(.|\\n){200,9000}"}}
        with Server() as server:
            plain = chat("What is a KV cache?", temperature=0)
            want = post(server, plain)[1]["choices"][0]["message"]["content"]
            slow = [chat(**extra, max_tokens=1500, min_tokens=1400, temperature=0)
                    for extra in (endless, long, ambiguous, counted)]
            mix = [body for one in slow for body in (one, plain)]
            answers = in_parallel(lambda body: post(server, body), mix)
            for status, answer in answers[1::2]:
                self.assertEqual(status, 200)
                self.assertEqual(answer["choices"][0]["message"]["content"], want)
            for (status, answer), body in zip(answers[0::2], slow):
                self.assertIn(status, (200, 400), (body, answer))
            status, answer = answers[4]
            self.assertEqual(status, 400, answer)
            self.assertEqual(answer["error"]["code"], "grammar_dead_end")
            self.assertIn("too long to follow", answer["error"]["message"])


if __name__ == "__main__":
    unittest.main()
