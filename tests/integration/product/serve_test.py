"""`deepinfer serve` as a stranger uses it: real process, real sockets, bundled model."""

import http.client
import json
import pathlib
import shutil
import signal
import socket
import tempfile
import threading
import time
import unittest

import support
from support import DEMO_MODEL, Server


def request(server, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=support.TIMEOUT_S)
    data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
    connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
    response = connection.getresponse()
    raw = response.read()
    connection.close()
    return response.status, json.loads(raw) if raw[:1] in (b"{", b"[") else raw


def chat(text="What is a KV cache?", **fields):
    return {"model": "deepinfer-tiny", "temperature": 0, "thinking": {"type": "disabled"},
            "messages": [{"role": "user", "content": text}], **fields}


def stream_events(server, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=support.TIMEOUT_S)
    connection.request("POST", "/v1/chat/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    raw = connection.getresponse().read().decode()
    connection.close()
    lines = [line[6:] for line in raw.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", raw
    return [json.loads(line) for line in lines[:-1]]


def start_endless(server):
    """The socket of a streamed answer that ends when the socket is closed."""
    body = json.dumps(chat("Hello", max_tokens=32000, ignore_eos=True, stream=True))
    head = ("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            "Content-Length: %d\r\n\r\n" % len(body))
    s = socket.create_connection(("127.0.0.1", server.port), timeout=support.TIMEOUT_S)
    s.sendall((head + body).encode())
    return s


class Serve(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.__exit__)

    def test_stream_and_plain_answers_are_equal(self):
        for body in (chat(), chat("Hello", thinking={"type": "enabled"}),
                     chat("Tell me something", temperature=1, seed=7)):
            status, plain = request(self.server, "POST", "/v1/chat/completions", body)
            self.assertEqual(status, 200, plain)
            events = stream_events(self.server,
                                   {**body, "stream": True,
                                    "stream_options": {"include_usage": True}})
            for field in ("content", "reasoning_content"):
                text = "".join(c["delta"].get(field) or "" for e in events for c in e["choices"])
                self.assertEqual(text, plain["choices"][0]["message"].get(field) or "")
            for key in ("prompt_tokens", "completion_tokens", "prompt_cache_miss_tokens"):
                self.assertEqual(events[-1]["usage"][key], plain["usage"][key])

    def test_demo_cases_over_http(self):
        lines = (DEMO_MODEL / "cases.jsonl").read_text(encoding="utf-8").splitlines()
        cases = [json.loads(line) for line in lines]
        picked = [c for c in cases if c["solved"] and not c["thinking"] and not c.get("tools")
                  and c["task"] in ("greet", "unknown", "concept", "reverse", "copy")][:12]
        self.assertEqual(len(picked), 12)
        right = 0
        for case in picked:
            status, body = request(self.server, "POST", "/v1/chat/completions", chat(case["user"]))
            self.assertEqual(status, 200, body)
            right += body["choices"][0]["message"]["content"] == case["expect"]
        self.assertGreaterEqual(right, 11)

    def test_nonsense_gets_an_error_and_the_server_lives(self):
        deep = b'{"messages":' + b"[" * 1_000_000
        for body in (b"", b"{", b"null", b"[]", deep, b"\xff\xfe", b'{"model": 1}'):
            status, answer = request(self.server, "POST", "/v1/chat/completions", body)
            self.assertEqual(status, 400, answer)
            self.assertIn("message", answer["error"])
        status, answer = request(self.server, "POST", "/v1/chat/completions",
                                 {**chat(), "model": "other"})
        self.assertEqual((status, answer["error"]["code"]), (404, "model_not_found"))
        status, answer = request(self.server, "POST", "/v1/chat/completions",
                                 chat("word " * 40000))
        self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"))
        status, answer = request(self.server, "POST", "/v1/completions",
                                 {"model": "deepinfer-tiny", "prompt": [[999999]]})
        self.assertEqual(status, 400)
        self.assertEqual(request(self.server, "GET", "/health")[0], 200)

    def test_raw_bytes_on_the_socket_do_no_harm(self):
        for junk in (b"\0" * 1000, b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/models HTTP/1.1\r\n" +
                     b"A: b\r\n" * 500 + b"\r\n"):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=30) as s:
                s.sendall(junk)
                s.shutdown(socket.SHUT_WR)
                s.settimeout(30)
                while s.recv(4096):
                    pass
        self.assertEqual(request(self.server, "GET", "/ready")[0], 200)

    def test_disconnect_frees_the_engine(self):
        with start_endless(self.server) as s:
            self.assertIn(b"200 OK", s.recv(4096))
        # One request runs at a time, so the next answer proves that the first one ended.
        status, _ = request(self.server, "POST", "/v1/chat/completions", chat(max_tokens=1))
        self.assertEqual(status, 200)
        deadline = time.monotonic() + support.TIMEOUT_S
        while server_running(self.server) != 0:
            self.assertLess(time.monotonic(), deadline, "the request still runs")
            time.sleep(0.01)

    def test_tokenize_routes(self):
        status, body = request(self.server, "POST", "/tokenize",
                               {"model": "deepinfer-tiny", "prompt": "What is 2+2?"})
        self.assertEqual(status, 200, body)
        status, back = request(self.server, "POST", "/detokenize", {"tokens": body["tokens"]})
        self.assertEqual(status, 200, back)
        self.assertTrue(back["prompt"].endswith("What is 2+2?"))


class Lifecycle(unittest.TestCase):
    def stop_while_answering(self, server, max_tokens):
        """SIGTERM in the middle of an answer; exit code 0 and one answer, which is returned."""
        answers = []
        thread = threading.Thread(target=lambda: answers.append(
            request(server, "POST", "/v1/chat/completions",
                    chat("Hello", max_tokens=max_tokens, ignore_eos=True))))
        thread.start()
        while server_running(server) == 0 and thread.is_alive():
            time.sleep(0.01)
        self.assertEqual(server.stop(), 0)
        thread.join()
        self.assertEqual(len(answers), 1)
        return answers[0]

    def test_sigterm_lets_a_running_answer_finish(self):
        with Server() as server:
            status, body = self.stop_while_answering(server, 300)
            self.assertEqual(status, 200, body)
            self.assertEqual(body["usage"]["completion_tokens"], 300)

    def test_sigterm_cuts_at_the_drain_timeout(self):
        with Server("--drain-timeout", "0.2") as server:
            status, body = self.stop_while_answering(server, 3900)
            self.assertIn(status, (200, 503), body)

    def test_probes_are_quiet_and_ignored_flags_are_named(self):
        with Server("--reasoning-parser", "deepseek", "--trust-remote-code",
                    wait_ready=False) as server:
            for path in ("/live", "/ready", "/health"):
                request(server, "GET", path)
            server.wait_event("server.ready")
            self.assertEqual(request(server, "GET", "/nothing")[0], 404)
            # Requests are logged in order of their end.
            self.assertEqual(server.wait_event("request")["status"], 404)
            ignored = [e["flag"] for e in server.events if e.get("event") == "flag.ignored"]
            self.assertEqual(ignored, ["--reasoning-parser", "--trust-remote-code"])

    def test_flags_of_other_servers_are_translated(self):
        with Server("-tp", "1", "--dp", "1", "-np", "3", "--gpu-memory-utilization", "0.9", "--kv-memory",
                    "400000000", "--default-chat-template-kwargs", '{"enable_thinking": false}',
                    "--speculative-config", '{"method":"dspark","num_speculative_tokens":0}') as server:
            body = {"model": "deepinfer-tiny", "max_tokens": 4, "temperature": 0,
                    "messages": [{"role": "user", "content": "Hello"}]}
            status, answer = request(server, "POST", "/v1/chat/completions", body)
            self.assertEqual(status, 200, answer)
            self.assertNotIn("reasoning_content", answer["choices"][0]["message"])
            self.assertEqual(answer["usage"]["deepinfer"]["drafted_tokens"], 0)
            self.assertEqual(server.wait_event("flag.ignored")["flag"], "--gpu-memory-utilization")

    def test_refused_values_can_have_the_hosted_status(self):
        with Server("--deepseek-status-codes") as server:
            path = "/v1/chat/completions"
            for body, want in ((chat(temperature=7), 422), (b"{", 400), (chat(max_tokens="x"), 400),
                               (chat("a " * 40000), 400), ({**chat(), "model": "x"}, 404)):
                status, answer = request(server, "POST", path, body)
                self.assertEqual(status, want, answer)
                self.assertIn("message", answer["error"])
            status, answer = request(server, "POST", "/v1/messages", {
                "model": "deepinfer-tiny", "max_tokens": 2, "temperature": 7,
                "messages": [{"role": "user", "content": "x"}]})
            self.assertEqual((status, answer["type"]), (400, "error"))

    def test_whole_answers_can_begin_with_empty_lines(self):
        with Server("--nonstream-whitespace-keepalive", "--sse-ping-interval", "0.02") as server:
            connection = http.client.HTTPConnection("127.0.0.1", server.port,
                                                    timeout=support.TIMEOUT_S)
            # A prompt that takes some steps.
            connection.request("POST", "/v1/chat/completions", json.dumps(
                chat("word " * 3000, max_tokens=3)), {"Content-Type": "application/json"})
            response = connection.getresponse()
            self.assertEqual(response.status, 200)
            self.assertEqual(response.getheader("Content-Type"), "application/json")
            raw = response.read()
            connection.close()
            self.assertTrue(raw.startswith(b"\n"), raw[:20])
            answer = json.loads(raw)
            self.assertEqual(answer["object"], "chat.completion")
            self.assertEqual(answer["usage"]["completion_tokens"], 3)
            # What is known before it starts has its own status.
            self.assertEqual(request(server, "POST", "/v1/chat/completions",
                                     chat(temperature=7))[0], 400)

    def test_texts_are_logged_only_where_they_are_asked_for(self):
        for flag, logged in (("meta", False), ("full", True)):
            with Server("--log-requests", flag) as server:
                _, answer = request(server, "POST", "/v1/chat/completions",
                                    chat("A secret of 7 words", max_tokens=5))
                server.wait_event("request")
                self.assertEqual(server.stop(), 0)
                text = json.dumps(server.events)
                self.assertEqual("A secret of 7 words" in text, logged)
                outputs = [e for e in server.events if e.get("event") == "request.output"]
                self.assertEqual(len(outputs), int(logged))
                if logged:
                    self.assertTrue(outputs[0]["text"].startswith(
                        answer["choices"][0]["message"]["content"]))
                    server.wait_event("requests.logged_in_full")

    def test_server_tools_of_responses_can_be_refused(self):
        body = {"model": "deepinfer-tiny", "input": "Hi", "max_output_tokens": 2,
                "tools": [{"type": "web_search"}]}
        for flags, want in (((), 200), (("--reject-server-tools",), 400)):
            with Server(*flags) as server:
                status, answer = request(server, "POST", "/v1/responses", body)
                self.assertEqual(status, want, answer)

    def test_a_request_that_waits_too_long_is_told_so(self):
        with Server("--queue-timeout", "0.1", "--max-num-seqs", "1") as server:
            with start_endless(server):
                while server_running(server) == 0:
                    time.sleep(0.01)
                status, body = request(server, "POST", "/v1/chat/completions", chat())
            self.assertEqual((status, body["error"]["code"]), (503, "queue_timeout"))

    def test_a_class_that_waits_too_long_is_told_to_come_again(self):
        with Server("--class-max-wait", "0.1,0,50", "--max-num-seqs", "1") as server:
            with start_endless(server):
                while server_running(server) == 0:
                    time.sleep(0.01)
                connection = http.client.HTTPConnection("127.0.0.1", server.port,
                                                        timeout=support.TIMEOUT_S)
                connection.request("POST", "/v1/chat/completions", json.dumps(chat()),
                                   {"Content-Type": "application/json"})
                response = connection.getresponse()
                body = json.loads(response.read())
                connection.close()
            self.assertEqual((response.status, body["error"]["code"]),
                             (429, "rate_limit_exceeded"))
            self.assertIn("class", body["error"]["message"])
            self.assertGreaterEqual(int(response.headers["Retry-After"]), 1)

    def test_a_second_server_on_the_port_fails_clearly(self):
        with Server() as server:
            result = support.run("serve", DEMO_MODEL, "--port", server.port)
            self.assertEqual(result.returncode, 1)
            self.assertIn(str(server.port), result.stderr.decode())

    def test_a_damaged_model_ends_the_process_with_its_file_named(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model"
            shutil.copytree(DEMO_MODEL, model)
            shard = model / "model-00001-of-00001.safetensors"
            with open(shard, "r+b") as f:
                f.truncate(1000)
            result = support.run("serve", model, "--port", 0)
            self.assertEqual(result.returncode, 1)
            self.assertIn(shard.name, result.stderr.decode())

    def test_an_open_address_needs_keys(self):
        result = support.run("serve", DEMO_MODEL, "--port", 0, "--host", "0.0.0.0")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--allow-unauthenticated", result.stderr.decode())

    def test_keys_are_checked(self):
        with Server("--api-key", "secret") as server:
            self.assertEqual(request(server, "GET", "/v1/models")[0], 401)
            self.assertEqual(request(server, "GET", "/v1/models",
                                     headers={"Authorization": "Bearer secret"})[0], 200)
            self.assertEqual(request(server, "GET", "/health")[0], 200)


def server_running(server):
    """Requests that the engine runs, by its own gauge."""
    raw = request(server, "GET", "/metrics")[1].decode()
    gauge = [line for line in raw.splitlines()
             if line.startswith("deepinfer:num_requests_running{")]
    assert len(gauge) == 1, raw
    return float(gauge[0].rsplit(" ", 1)[1])


if __name__ == "__main__":
    unittest.main()
