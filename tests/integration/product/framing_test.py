"""How benchmark clients cut a stream into events, against the server: those that split on reads and
those that look at lines, with pings off and on."""

import json
import socket
import unittest

import support
from support import Server
from serve_test import chat, request

LONG = "word " * 3500  # its prompt takes long enough for pings


def open_stream(server, body, path="/v1/chat/completions"):
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    s = socket.create_connection(("127.0.0.1", server.port), timeout=support.TIMEOUT_S)
    # HTTP/1.0: the body is not chunked, so that a read holds what one write sent.
    s.sendall(b"POST %s HTTP/1.0\r\nHost: x\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
    head = b""
    while b"\r\n\r\n" not in head:
        head += s.recv(1)
    return s, head


def reads(server, body, path="/v1/chat/completions"):
    s, head = open_stream(server, body, path)
    assert b" 200 " in head.split(b"\r\n", 1)[0], head
    with s:
        while data := s.recv(1 << 20):
            yield data


def split_on_reads(parts):
    """Takes every read as whole lines, leaves comments out, cuts the fixed prefix."""
    events, done = [], False
    for part in parts:
        for line in part.split(b"\n"):
            line = line.strip()
            if not line or line.startswith(b":"):
                continue
            data = line.removeprefix(b"data: ")
            if data == b"[DONE]":
                done = True
            else:
                events.append(json.loads(data))
    return events, done


def cut_fixed_prefix(parts):
    """Looks at lines and cuts six bytes off each, whatever they are."""
    events, done = [], False
    for line in b"".join(parts).split(b"\n"):
        data = line.strip()[6:]
        if not data:
            continue
        if data == b"[DONE]":
            done = True
        else:
            events.append(json.loads(data))
    return events, done


def buffered(parts):
    """Collects bytes and splits at blank lines."""
    events, done, pending = [], False, b""
    for part in parts:
        *blocks, pending = (pending + part).split(b"\n\n")
        for block in blocks:
            if block.startswith(b":"):
                continue
            data = block.removeprefix(b"data: ")
            if data == b"[DONE]":
                done = True
            else:
                events.append(json.loads(data))
    assert pending == b"", pending
    return events, done


class Framing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.quiet = Server("--sse-ping-interval", "-1")
        cls.addClassCleanup(cls.quiet.__exit__)
        cls.pinging = Server("--sse-ping-interval", "0.02")
        cls.addClassCleanup(cls.pinging.__exit__)

    def check(self, server, body, framing, path="/v1/chat/completions"):
        events, done = framing(reads(server, body, path))
        self.assertTrue(done)
        usage = events[-1]["usage"]
        self.assertEqual(events[-1]["choices"], [])
        status, plain = request(server, "POST", path, body)
        self.assertEqual(status, 200)
        self.assertEqual(usage["completion_tokens"], plain["usage"]["completion_tokens"])
        self.assertEqual(usage["prompt_tokens"], plain["usage"]["prompt_tokens"])

    def test_every_framing_works_with_pings_off(self):
        for framing in (split_on_reads, cut_fixed_prefix, buffered):
            self.check(self.quiet, chat(max_tokens=40, ignore_eos=True), framing)
            self.check(self.quiet, chat(LONG, max_tokens=3), framing)
            self.check(self.quiet, {"model": "deepinfer-tiny", "prompt": "Once", "temperature": 0,
                                    "max_tokens": 30, "ignore_eos": True}, framing,
                       "/v1/completions")

    def test_reads_begin_and_end_with_events(self):
        for part in reads(self.quiet, chat(max_tokens=60, ignore_eos=True)):
            self.assertTrue(part.startswith(b"data: "), part)
            self.assertTrue(part.endswith(b"\n\n"), part)

    def test_J07_comments_are_whole_and_only_before_the_first_token(self):
        parts = list(reads(self.pinging, chat("Other " + LONG, max_tokens=3)))
        raw = b"".join(parts)
        first = raw.index(b"data: ")
        self.assertGreater(raw[:first].count(b": keep-alive\n\n"), 0)
        self.assertEqual(raw[:first].replace(b": keep-alive\n\n", b""), b"")
        self.assertNotIn(b": keep-alive", raw[first:])
        for framing in (split_on_reads, buffered):
            events, done = framing(iter(parts))
            self.assertTrue(done and events)
        # The reason why such clients need pings off (docs/api.md section 5).
        with self.assertRaises(ValueError):
            cut_fixed_prefix(iter(parts))


if __name__ == "__main__":
    unittest.main()
