"""Traces of requests at a collector over HTTP: what a span says, and that a collector which is slow,
gone or refuses holds nobody."""

import http.client
import http.server
import json
import os
import pathlib
import ssl
import subprocess
import tempfile
import threading
import time
import unittest

import support
from serve_test import chat, request, stream_events
from support import Server

CHAT = "/v1/chat/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """A server for POST /v1/traces; keeps the spans it accepts. `answer` makes the status."""

    def __init__(self, answer=lambda: 200, tls=None):
        self.spans = []
        self.posts = 0
        self.condition = threading.Condition()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = answer()
                with collector.condition:
                    collector.posts += 1
                    if status == 200:
                        assert self.path == "/v1/traces", self.path
                        assert self.headers["Content-Type"] == "application/json"
                        collector.spans += spans_of(json.loads(body))
                    collector.condition.notify_all()
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", "2")
                    self.end_headers()
                    self.wfile.write(b"{}")
                except ConnectionError:
                    pass  # the server waited long enough

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # a client that does not trust it goes away
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.url = "%s:%d/v1/traces" % ("https://localhost" if tls else "http://127.0.0.1",
                                        self.server.server_address[1])

    def wait(self, found):
        with self.condition:
            assert self.condition.wait_for(lambda: found(self), timeout=support.TIMEOUT_S), self.spans

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def spans_of(export):
    found = []
    for resource in export["resourceSpans"]:
        names = {a["key"]: a["value"]["stringValue"] for a in resource["resource"]["attributes"]}
        assert names["service.name"] == "deepinfer", names
        for scope in resource["scopeSpans"]:
            found += scope["spans"]
    return found


def attributes(span):
    return {a["key"]: next(iter(a["value"].values())) for a in span.get("attributes", [])}


def metric(server, name):
    text = request(server, "GET", "/metrics")[1].decode()
    return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                if line.startswith("deepinfer:%s{" % name))


class Traces(unittest.TestCase):
    def test_a_request_is_a_span_with_children(self):
        collector = Collector()
        self.addCleanup(collector.close)
        with Server("--otlp-traces-endpoint", collector.url,
                    env={"OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental"}) as server:
            began = time.time_ns()
            status, answer = request(
                server, "POST", CHAT, chat("A secret question", max_tokens=6, temperature=0.5, seed=1),
                {"traceparent": "00-%s-%s-01" % (TRACE, PARENT), "X-Request-Id": "traced"})
            self.assertEqual(status, 200, answer)
            collector.wait(lambda c: len(c.spans) >= 4)
            ended = time.time_ns()
            spans = {span["name"]: span for span in collector.spans}
            self.assertEqual(sorted(spans), ["decode", "llm_request", "prefill", "queue"])
            root = spans["llm_request"]
            self.assertEqual((root["traceId"], root["parentSpanId"], root["kind"]), (TRACE, PARENT, 2))
            known = attributes(root)
            usage = answer["usage"]
            for key, value in (("gen_ai.request.id", "traced"),
                               ("gen_ai.response.model", "deepinfer-tiny"),
                               ("gen_ai.request.max_tokens", "6"),
                               ("gen_ai.request.temperature", 0.5), ("gen_ai.request.n", "1"),
                               ("gen_ai.usage.prompt_tokens", str(usage["prompt_tokens"])),
                               ("gen_ai.usage.completion_tokens", str(usage["completion_tokens"])),
                               ("gen_ai.usage.input_tokens", str(usage["prompt_tokens"])),
                               ("gen_ai.operation.name", "chat"),
                               ("http.response.status_code", "200")):
                self.assertEqual(known[key], value, key)
            self.assertLessEqual(known["gen_ai.latency.time_to_first_token"],
                                 known["gen_ai.latency.e2e"])
            # Times are those of the wall clock, children lie in their parent and one behind the
            # other.
            at = {name: (int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"]))
                  for name, span in spans.items()}
            order = [began, at["llm_request"][0], *at["queue"], *at["prefill"], *at["decode"],
                     at["llm_request"][1], ended]
            self.assertEqual(order, sorted(order))
            for name in ("queue", "prefill", "decode"):
                self.assertEqual(spans[name]["parentSpanId"], root["spanId"])
                self.assertEqual(spans[name]["traceId"], TRACE)
            self.assertEqual(len({span["spanId"] for span in spans.values()}), 4)
            self.assertNotIn("secret", json.dumps(collector.spans))

            # Who asked for no trace gets none; who asked for nothing gets one of his own.
            collector.spans.clear()
            request(server, "POST", CHAT, chat(max_tokens=1),
                    {"traceparent": "00-%s-%s-00" % (TRACE, PARENT)})
            stream_events(server, chat(max_tokens=2, stream=True))
            request(server, "POST", CHAT, {"model": "unknown"})
            collector.wait(lambda c: sum(s["name"] == "llm_request" for s in c.spans) >= 2)
            roots = [s for s in collector.spans if s["name"] == "llm_request"]
            self.assertEqual(len(roots), 2)
            self.assertNotIn(TRACE, [s["traceId"] for s in roots])
            self.assertNotIn("parentSpanId", roots[0])
            self.assertIn("400", {attributes(s)["http.response.status_code"] for s in roots})

    def test_the_answer_names_the_span(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "traces.jsonl"
            with Server("--trace-file", file) as server:
                connection = http.client.HTTPConnection("127.0.0.1", server.port,
                                                        timeout=support.TIMEOUT_S)
                connection.request("POST", CHAT, json.dumps(chat(max_tokens=1)),
                                   {"Content-Type": "application/json",
                                    "traceparent": "00-%s-%s-01" % (TRACE, PARENT)})
                response = connection.getresponse()
                response.read()
                connection.close()
                version, trace, span, flags = response.getheader("traceparent").split("-")
                self.assertEqual((version, trace, flags), ("00", TRACE, "01"))
                self.assertEqual(server.stop(), 0)
            lines = [json.loads(line) for line in file.read_text().splitlines()]
        self.assertIn(span, [s["spanId"] for line in lines for s in spans_of(line)])

    def test_a_collector_that_hangs_or_fails_holds_nobody(self):
        release = threading.Event()
        state = {"status": 503}

        def answer():
            if state["status"] == 0:
                release.wait(support.TIMEOUT_S)
                return 200
            return state["status"]

        collector = Collector(answer)
        self.addCleanup(collector.close)
        self.addCleanup(release.set)
        with Server("--otlp-traces-endpoint", collector.url) as server:
            self.assertEqual(request(server, "POST", CHAT, chat(max_tokens=1))[0], 200)
            collector.wait(lambda c: c.posts >= 1)
            server.wait_event("traces.export_failed")
            # What it refused for a while comes again.
            state["status"] = 200
            collector.wait(lambda c: len(c.spans) >= 4)
            # What it refuses for good is lost and counted.
            state["status"] = 400
            posts = collector.posts
            self.assertEqual(request(server, "POST", CHAT, chat(max_tokens=1))[0], 200)
            collector.wait(lambda c: c.posts > posts)
            deadline = time.monotonic() + support.TIMEOUT_S
            while metric(server, "traces_dropped_total") < 1:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.02)
            self.assertEqual(metric(server, "traces_exported_total"), 1)
            # One that never answers holds neither requests nor the end of the process.
            state["status"] = 0
            for _ in range(5):
                self.assertEqual(request(server, "POST", CHAT, chat(max_tokens=1))[0], 200)
            self.assertEqual(server.stop(), 0)

    def test_endpoints_that_cannot_be_used_end_the_start(self):
        for endpoint in ("ftp://127.0.0.1:4318", "127.0.0.1:4318", "http://", "https://x:port/"):
            done = support.run("serve", support.DEMO_MODEL, "--port", "0",
                               "--otlp-traces-endpoint", endpoint)
            self.assertNotEqual(done.returncode, 0, endpoint)
            self.assertIn(b"http[s]://", done.stderr, endpoint)

    def test_a_collector_over_tls_must_show_who_it_is(self):
        with tempfile.TemporaryDirectory() as folder:
            certificate, key = pathlib.Path(folder) / "c.pem", pathlib.Path(folder) / "k.pem"
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                            "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                            "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout",
                            key, "-out", certificate], check=True, capture_output=True)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            collector = Collector(tls=context)
            self.addCleanup(collector.close)
            with Server("--otlp-traces-endpoint", collector.url,
                        env={"SSL_CERT_FILE": str(certificate)}) as server:
                request(server, "POST", CHAT, chat(max_tokens=1),
                        {"traceparent": "00-%s-%s-01" % (TRACE, PARENT), "tracestate": "a=1,b=2"})
                collector.wait(lambda c: len(c.spans) >= 1)
                root = next(s for s in collector.spans if s["name"] == "llm_request")
                self.assertEqual((root["traceId"], root["traceState"]), (TRACE, "a=1,b=2"))
            # One that nobody vouches for gets nothing.
            with Server("--otlp-traces-endpoint", collector.url,
                        env={"SSL_CERT_FILE": os.devnull}) as server:
                posts = collector.posts
                request(server, "POST", CHAT, chat(max_tokens=1))
                server.wait_event("traces.export_failed")
                self.assertEqual(collector.posts, posts)


if __name__ == "__main__":
    unittest.main()
