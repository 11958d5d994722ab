"""/openapi.json of a running server: equal to docs/openapi.json, and true about what is refused.

usage: openapi_test.py [--write] BINARY     --write makes the document from the server
"""

import json
import pathlib
import re
import sys
import unittest

WRITE = "--write" in sys.argv
if WRITE:
    sys.argv.remove("--write")

import jsonschema
from support import ROOT, Server
from serve_test import chat, request

DOCUMENT = ROOT / "docs/openapi.json"


class OpenApi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.__exit__)
        status, cls.document = request(cls.server, "GET", "/openapi.json")
        assert status == 200
        if WRITE:
            DOCUMENT.write_text(json.dumps(cls.document, indent=1) + "\n", encoding="utf-8")

    def schema(self, path):
        operation = self.document["paths"][path]["post"]
        return operation["requestBody"]["content"]["application/json"]["schema"]

    def fits(self, path, body):
        return jsonschema.Draft202012Validator(self.schema(path)).is_valid(body)

    def test_the_document_in_the_repository_is_that_of_the_server(self):
        self.assertEqual(json.loads(DOCUMENT.read_text(encoding="utf-8")), self.document,
                         "run tests/integration/product/openapi_test.py --write BINARY")

    def test_every_schema_is_one(self):
        for path, operations in self.document["paths"].items():
            if "post" in operations:
                jsonschema.Draft202012Validator.check_schema(self.schema(path))

    def test_a_path_declares_the_parameters_in_it(self):
        for path, operations in self.document["paths"].items():
            for operation in operations.values():
                declared = [p["name"] for p in operation.get("parameters", [])]
                self.assertEqual(declared, re.findall(r"{(\w+)}", path), path)

    def test_requests_that_are_answered_fit(self):
        bodies = {
            "/v1/chat/completions": chat("Hello", max_tokens=1, stop=["x"], logit_bias={"5": 1},
                                         reasoning_effort="low", seed=None, n=1,
                                         stream_options=None),
            "/v1/completions": {"model": "deepinfer-tiny", "prompt": [[1, 2]], "max_tokens": 1,
                                "logprobs": 2, "echo": True},
            "/v1/messages": {"model": "deepinfer-tiny", "max_tokens": 1, "system": "s",
                             "messages": [{"role": "user", "content": "Hi"}],
                             "metadata": {"user_id": "u"}, "thinking": {"type": "disabled"}},
            "/v1/responses": {"model": "deepinfer-tiny", "input": "Hi", "max_output_tokens": 1,
                              "reasoning": {"effort": "none"}, "text": {"format": {"type": "text"}}},
            "/tokenize": {"prompt": "x"}, "/detokenize": {"tokens": [1]},
        }
        for path, body in bodies.items():
            self.assertEqual(request(self.server, "POST", path, body)[0], 200, path)
            self.assertTrue(self.fits(path, body), path)

    def test_requests_that_do_not_fit_are_refused(self):
        good = chat("Hello", max_tokens=1)
        for change in ({"model": 5}, {"temperature": "hot"}, {"stream": "yes"}, {"n": 1.5},
                       {"messages": [{"role": "nobody", "content": "x"}]}, {"logprobs": 1},
                       {"service_tier": "gold"}, {"min_tokens": -1},
                       {"tools": [{"type": "function"}]}, {"thinking": {"type": "perhaps"}}):
            body = {**good, **change}
            self.assertFalse(self.fits("/v1/chat/completions", body), change)
            self.assertEqual(request(self.server, "POST", "/v1/chat/completions", body)[0], 400, change)

    def test_required_fields_are_known(self):
        self.assertEqual(set(self.schema("/v1/chat/completions")["required"]), {"model", "messages"})
        self.assertEqual(self.schema("/v1/completions")["required"], ["model"])
        self.assertIn("model", self.schema("/v1/messages")["required"])


if __name__ == "__main__":
    unittest.main()
