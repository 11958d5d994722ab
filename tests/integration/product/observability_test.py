"""What a server shows of itself: the Grafana board asks for series that exist, and log lines never
hold text of prompts or answers."""

import json
import re
import unittest

from support import ROOT, Server
from serve_test import chat, request

BOARD = ROOT / "deploy/grafana/deepinfer.json"
SECRET = "zebra quartz lantern"


class Observability(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--log-level", "debug")
        cls.addClassCleanup(cls.server.__exit__)
        for body in (chat("Repeat: " + SECRET, max_tokens=20),
                     chat(SECRET, max_tokens=4, temperature=9),
                     chat(SECRET, model="nobody")):
            request(cls.server, "POST", "/v1/chat/completions", body)
        request(cls.server, "POST", "/tokenize", {"prompt": SECRET})
        request(cls.server, "POST", "/v1/chat/completions", ("{" + SECRET).encode())
        cls.metrics = request(cls.server, "GET", "/metrics")[1].decode()

    def test_the_board_asks_for_series_that_exist(self):
        board = json.loads(BOARD.read_text(encoding="utf-8"))
        exported = set(re.findall(r"^# TYPE (\S+) ", self.metrics, re.MULTILINE))
        asked = set()
        for panel in board["panels"]:
            self.assertTrue(panel["title"] and panel["targets"])
            for target in panel["targets"]:
                asked |= set(re.findall(r"deepinfer:\w+", target["expr"]))
        self.assertGreater(len(asked), 15)
        for name in asked:
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            self.assertIn(base, exported)
        places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]
        self.assertEqual(len(places), len(set(places)))

    def test_log_lines_are_json_without_text_of_requests(self):
        self.server.wait_event("request")
        lines = json.dumps(self.server.events)
        for word in SECRET.split():
            self.assertNotIn(word, lines)
        line = self.server.wait_event("request")
        for key in ("ts", "level", "request_id", "route", "key_name", "status", "model",
                    "prompt_tokens", "cached_tokens", "computed_tokens", "completion_tokens",
                    "queue_ms", "ttft_ms", "e2e_ms", "finish_reason", "client_retry"):
            self.assertIn(key, line)


if __name__ == "__main__":
    unittest.main()
