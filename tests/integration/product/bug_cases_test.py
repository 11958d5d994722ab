"""Failures that users reported against inference servers, one test per row of docs/bug_cases.md:
those that need a running server with the demo model, forced outputs and a real cache."""

import concurrent.futures
import http.client
import json
import socket
import threading
import time
import unittest

import support
from cluster_support import Cluster
from support import Server
from serve_test import chat, request, start_endless, stream_events

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"]}}}
# Long enough that its beginning is worth keeping: hits below 256 tokens run cold.
LONG = " ".join("Fact %d: the number of drawer %d is %d." % (i, i, i * 7) for i in range(60))


def call_text(name="get_weather", reasoning="", content="", **arguments):
    lines = ["<｜DSML｜ parameter name=\"%s\" string=\"%s\">%s</｜DSML｜ parameter>\n" % (
        key, "true" if isinstance(value, str) else "false",
        value if isinstance(value, str) else json.dumps(value))
        for key, value in arguments.items()]
    return "%s%s\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"%s\">\n%s</｜DSML｜ invoke>\n</｜DSML｜ calls>" % (
        reasoning + "</think>" if reasoning else "", content, name, "".join(lines))


def events_of(raw):
    """(name, JSON) of every named event of a stream."""
    found = []
    for block in raw.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in lines and lines["data"] != "[DONE]":
            found.append((lines.get("event", ""), json.loads(lines["data"])))
    return found


class BugCases(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--enable-test-hooks", "--replay", "exact", "--max-num-seqs", "16",
                            "--debug-endpoints")
        cls.addClassCleanup(cls.server.__exit__)

    def post(self, path, body, status=200, server=None):
        got, answer = request(server or self.server, "POST", path, body)
        self.assertEqual(got, status, answer)
        return answer

    def metric(self, name, **labels):
        status, text = request(self.server, "GET", "/metrics")
        self.assertEqual(status, 200)
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.decode().splitlines()
                   if line.startswith("deepinfer:%s{" % name) and
                   all('%s="%s"' % pair in line for pair in labels.items()))

    def expect_metric(self, value, name, **labels):
        """A request is counted once its answer is on its way, so a reader may be early."""
        deadline = time.monotonic() + support.TIMEOUT_S
        while self.metric(name, **labels) < value and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertEqual(self.metric(name, **labels), value)

    def expect_alive(self):
        """The next request succeeds and nothing is left behind."""
        self.post(CHAT, chat("Hello", max_tokens=2))
        deadline = time.monotonic() + support.TIMEOUT_S
        while self.metric("num_requests_running") or self.metric("blocks_in_use"):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def forced(self, text, **fields):
        return chat("Go on.", test_force_text=text, **fields)

    # --- A: stop strings

    def test_A05_stopStringsActAlikeInOneProcessAndInSeveral(self):
        def answers(server):
            found = []
            for include in (False, True):
                body = {**chat("Describe a river.", max_tokens=60, ignore_eos=True),
                        "stop": [stop], "include_stop_str_in_output": include}
                whole = self.post(CHAT, body, server=server)["choices"][0]
                choices = [event["choices"][0]
                           for event in stream_events(server, {**body, "stream": True})]
                text = "".join(choice["delta"].get("content") or "" for choice in choices)
                self.assertEqual((text, choices[-1]["finish_reason"], choices[-1]["stop_reason"]),
                                 (whole["message"]["content"], "stop", stop))
                found.append(text)
            return found

        free = self.post(CHAT, chat("Describe a river.", max_tokens=60, ignore_eos=True))
        text = free["choices"][0]["message"]["content"]
        middle = len(text) // 2
        stop = text[middle:middle + 12]  # of several tokens
        before = text[:text.index(stop)]
        with Cluster("--prefill", "1", "--decode", "1", "--kv-dir", "none") as cluster:
            self.assertEqual(answers(cluster), [before, before + stop])
        self.assertEqual(answers(self.server), [before, before + stop])

    # --- B: tool calls and reasoning

    def test_B08_secondTurnOnOneConnectionStartsClean(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=support.TIMEOUT_S)
        contents = []
        for text in ("First." + call_text(city="Oslo"), "Second, plain."):
            connection.request("POST", CHAT, json.dumps(self.forced(text, tools=[WEATHER])),
                               {"Content-Type": "application/json"})
            message = json.loads(connection.getresponse().read())["choices"][0]["message"]
            contents.append((message["content"], bool(message.get("tool_calls"))))
        connection.close()
        self.assertEqual(contents, [("First.", True), ("Second, plain.", False)])

    def test_B13_historyArgumentsThatAreNotJson(self):
        for arguments in ("{", "", "null", "[1]", "not json", '{"a":'):
            body = chat("x", tools=[WEATHER], max_tokens=4)
            body["messages"] += [
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "c1", "type": "function",
                     "function": {"name": "get_weather", "arguments": arguments}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "bad call"}]
            self.post(CHAT, body)
        self.expect_alive()

    def test_B14_anAgentThatReplaysItsBrokenCallGoesOn(self):
        messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
        for turn in range(5):
            answer = self.post(CHAT, {**self.forced(
                "Trying.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n<｜DSML｜ parameter "
                "name=\"city\" string=\"false\">{broken</｜DSML｜ parameter>\n</｜DSML｜ invoke>"),
                "messages": messages, "tools": [WEATHER]})
            message = answer["choices"][0]["message"]
            messages.append(message)
            for call in message.get("tool_calls") or []:
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "bad"})
            messages.append({"role": "user", "content": "Again %d" % turn})
        self.post(CHAT, {**chat("x", max_tokens=3), "messages": messages, "tools": [WEATHER]})

    def test_B15_outputThatIsNotJsonIsData(self):
        for repeat in range(15):
            value = "{not json" if repeat == 7 else {"degrees": repeat}
            text = call_text(city="Oslo", details=value)
            answer = self.post(CHAT, self.forced(text, tools=[WEATHER]))
            (call,) = answer["choices"][0]["message"]["tool_calls"]
            self.assertEqual(json.loads(call["function"]["arguments"])["city"], "Oslo")

    def test_B16_missingReasoningPassback(self):
        body = chat("x", tools=[WEATHER], max_tokens=4, thinking={"type": "enabled"})
        body["messages"] += [
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "c1", "type": "function",
                 "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"}]
        self.post(CHAT, body)
        with Server("--strict-reasoning-passback") as strict:
            answer = self.post(CHAT, body, 400, strict)
            self.assertIn("reasoning_content", json.dumps(answer["error"]))
            body["messages"][1]["reasoning_content"] = "I look."
            self.post(CHAT, body, 200, strict)

    def test_B17_toolLoopWithReasoningSentBackReusesItsPrefix(self):
        messages = [{"role": "user", "content": LONG + " Which drawers matter?"}]
        cached = []
        for turn in range(3):
            answer = self.post(CHAT, {**self.forced(
                call_text(reasoning="Round %d." % turn, city="Oslo %d" % turn)),
                "thinking": {"type": "enabled"}, "messages": messages, "tools": [WEATHER]})
            message = answer["choices"][0]["message"]
            self.assertEqual(message["reasoning_content"], "Round %d." % turn)
            messages += [message, {"role": "tool", "content": "sunny",
                                   "tool_call_id": message["tool_calls"][0]["id"]}]
            cached.append(answer["usage"]["prompt_cache_hit_tokens"])
        self.assertGreater(min(cached[1:]), 0, cached)
        rendered = self.post(CHAT + "/render", {**chat("x"), "thinking": {"type": "enabled"},
                                                "messages": messages, "tools": [WEATHER]})
        for turn in range(3):
            self.assertIn("Round %d." % turn, rendered["prompt"])

    # --- J: caches of agents

    def agent_round(self, messages, turn, **fields):
        """One forced call, spaced as no writer of JSON would; the message and its usage."""
        # Longer than a block, so that its loss would be seen.
        text = call_text(reasoning="Round %d." % turn, content=LONG[:700], city="Oslo",
                         days={"first": turn, "all": [1, 2]})
        text = text.replace('{"first": ', '{"first":   ').replace("[1, 2]", "[1,2]")
        answer = self.post(CHAT, {**self.forced(text), "thinking": {"type": "enabled"},
                                  "messages": messages, "tools": [WEATHER]})
        return answer["choices"][0]["message"], answer["usage"]

    def test_J05_reserialisedToolTurnsHitTheCacheToTheirEnd(self):
        def reserialise(arguments):
            value = json.loads(arguments)
            return json.dumps(dict(sorted(value.items(), reverse=True)), separators=(",", ":"))

        def change(arguments):
            return json.dumps({**json.loads(arguments), "city": "Rome"})

        for rewrite, goes_on in ((reserialise, True), (change, False)):
            # A conversation of its own: the other one leaves nothing in its cache.
            messages = [{"role": "user", "content": rewrite.__name__ + LONG}]
            known = 0  # tokens behind which the next prompt may go on
            for turn in range(4):
                message, usage = self.agent_round(messages, turn)
                cached = usage["prompt_cache_hit_tokens"] + usage["deepinfer"]["replayed_tokens"]
                if turn > 0 and goes_on:
                    self.assertEqual(cached, known // 128 * 128, turn)
                    self.assertGreater(cached, 0.6 * usage["prompt_tokens"])
                elif turn > 0:
                    self.assertLess(cached, known // 128 * 128, turn)
                known = usage["prompt_tokens"] + usage["completion_tokens"]
                call = message["tool_calls"][0]
                call["function"]["arguments"] = rewrite(call["function"]["arguments"])
                del message["reasoning_content"]
                # Longer than a window, so that the end of the turn may be gone on from.
                messages += [message, {"role": "tool", "tool_call_id": call["id"],
                                       "content": "It is sunny, %d. " % turn + LONG[:800]}]

    def test_J05_markedPlacesAreGoneOnFrom(self):
        def ask(name, rest, mark):
            block = {"type": "text", "text": name + LONG, **mark}
            return self.post(MESSAGES, self.messages_body("", system=[block], messages=[
                {"role": "user", "content": rest + LONG}]))["usage"]

        mark = {"cache_control": {"type": "ephemeral"}}
        for name, marked in (("Marked. ", mark), ("Plain. ", {})):
            ask(name, "First.", marked)
            usage = ask(name, "Second.", {})["deepinfer"]
            if marked:
                # The state behind the last whole block in front of the mark was kept.
                self.assertEqual(usage["replayed_tokens"], 0)
                self.assertGreater(usage["cached_tokens"], 512)
                expected = usage["cached_tokens"]
            else:
                self.assertLess(usage["cached_tokens"], expected)

    def test_explicitModeKeepsWhatStandsInFrontOfAMark(self):
        def written(mode, marked):
            parts = [{"type": "text", "text": "%s %s. %s" % (mode, marked, LONG)},
                     {"type": "text", "text": " tail" * 400}]
            if marked:
                parts[0]["prompt_cache_breakpoint"] = True
            usage = self.post(CHAT, {
                **chat("x", max_tokens=2), "messages": [{"role": "user", "content": parts}],
                "prompt_cache_options": {"mode": mode}})["usage"]
            return usage["prompt_tokens_details"]["cache_write_tokens"], usage["prompt_tokens"]

        everything, prompt = written("implicit", False)
        self.assertEqual(everything, prompt // 128 * 128)
        before_mark, prompt = written("explicit", True)
        self.assertGreater(before_mark, 0)
        self.assertLess(before_mark, prompt - 400)
        self.assertEqual(written("explicit", False)[0], 0)

    def test_J06_theFirstTokenThatDiffersIsReported(self):
        def history(order):
            return [{"role": "user", "content": "J06 " + LONG},
                    {"role": "assistant", "content": None, "tool_calls": [
                        {"id": "c%d" % i, "type": "function", "function": {
                            "name": "get_weather", "arguments": '{"city":"%s"}' % city}}
                        for i, city in order]},
                    *({"role": "tool", "tool_call_id": "c%d" % i, "content": "sunny"}
                      for i, _ in order)]

        def ask(name, order):
            status, answer = request(self.server, "POST", CHAT, {
                **chat("x", max_tokens=2), "messages": history(order), "tools": [WEATHER]},
                {"X-Request-Id": name})
            self.assertEqual(status, 200, answer)
            status, report = request(self.server, "GET", "/debug/prefix/" + name)
            self.assertEqual(status, 200, report)
            return answer["usage"], report

        calls = [(0, "Oslo"), (1, "Rome")]
        usage, first = ask("J06-first", calls)
        self.assertEqual(first["prompt_tokens"], usage["prompt_tokens"])
        usage, report = ask("J06-second", calls[::-1])
        nearest = report["nearest"]
        self.assertEqual(nearest["request_id"], "J06-first")
        difference = nearest["first_difference"]
        self.assertEqual(difference["index"], nearest["num_common_tokens"])
        self.assertTrue("Rome".startswith(difference["here"]["text"]), difference)
        self.assertTrue("Oslo".startswith(difference["there"]["text"]), difference)
        self.assertTrue(difference["here"]["before"].endswith('string="true">'), difference)
        found = [block for block in report["blocks"] if block["found"]]
        self.assertEqual(len(found), nearest["num_common_tokens"] // 128)
        self.assertTrue(all(block["shared"] for block in found))
        self.assertEqual(report["cached_tokens"], usage["deepinfer"]["cached_tokens"])
        self.assertEqual(request(self.server, "GET", "/debug/prefix/unknown")[0], 404)

    # --- D: usage counts of the Messages API

    def messages_body(self, text, **fields):
        return {"model": "deepinfer-tiny", "max_tokens": 4, "temperature": 0, "system": text + LONG,
                "thinking": {"type": "disabled"},
                "messages": [{"role": "user", "content": "Which one?"}], **fields}

    def test_D04_cacheReadsOfASecondMessage(self):
        marked = self.messages_body("D04 ")
        marked["messages"][0]["content"] = [
            {"type": "text", "text": "Which one?", "cache_control": {"type": "ephemeral"}}]
        first, second = (self.post(MESSAGES, marked)["usage"] for _ in range(2))
        for usage in (first, second):
            extension = usage["deepinfer"]
            self.assertEqual(usage["cache_read_input_tokens"], extension["cached_tokens"])
            self.assertEqual(usage["input_tokens"] + usage["cache_creation_input_tokens"],
                             extension["computed_tokens"])
        self.assertEqual(first["cache_read_input_tokens"], 0)
        self.assertGreater(second["cache_read_input_tokens"], 0)
        plain = self.post(MESSAGES, self.messages_body("D04 "))["usage"]
        self.assertEqual(plain["cache_creation_input_tokens"], 0)

    def test_D05_cacheFieldsAtBothEndsOfAStream(self):
        body = self.messages_body("D05 ", stream=True)
        self.post(MESSAGES, body)
        events = dict(events_of(self.post(MESSAGES, body)))
        start = events["message_start"]["message"]["usage"]
        delta = events["message_delta"]["usage"]
        for field in ("cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens"):
            self.assertEqual(start[field], delta[field], field)
        self.assertGreater(start["cache_read_input_tokens"], 0)

    def test_D06_thinkingAndCacheReadsTogether(self):
        body = self.messages_body("D06 ", max_tokens=50, thinking={"type": "enabled", "budget_tokens": 1024},
                                  test_force_text="Thought.</think>Answer.")
        self.post(MESSAGES, body)
        answer = self.post(MESSAGES, body)
        self.assertEqual([block["type"] for block in answer["content"]], ["thinking", "text"])
        self.assertGreater(answer["usage"]["cache_read_input_tokens"], 0)
        self.assertGreater(answer["usage"]["output_tokens_details"]["thinking_tokens"], 0)

    # --- E: cancellation

    def test_E03_prefixStaysValidBehindAnAbort(self):
        history = [{"role": "user", "content": "E03 " + LONG}]
        body = {**chat("x", max_tokens=4000, ignore_eos=True, stream=True), "messages": history}
        data = json.dumps(body).encode()
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=support.TIMEOUT_S) as s:
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                      b"Content-Length: %d\r\n\r\n" % len(data) + data)
            while b'"content":"' not in s.recv(65536):
                pass
        history += [{"role": "assistant", "content": "Cut."}, {"role": "user", "content": "Go on"}]
        usage = self.post(CHAT, {**chat("x", max_tokens=4), "messages": history})["usage"]
        self.assertGreater(usage["prompt_cache_hit_tokens"], 0)
        self.assertLess(usage["prompt_cache_miss_tokens"], usage["prompt_tokens"] / 2)
        self.expect_alive()

    # --- F: limits

    def test_F09_aLongPromptDoesNotStopRunningStreams(self):
        received = [0] * 3
        sockets = [start_endless(self.server) for _ in received]
        stop = threading.Event()

        def read(index):
            while not stop.is_set():
                data = sockets[index].recv(65536)
                if not data:
                    return
                received[index] += data.count(b"data: {")

        readers = [threading.Thread(target=read, args=(i,)) for i in range(len(received))]
        try:
            for reader in readers:
                reader.start()
            deadline = time.monotonic() + support.TIMEOUT_S
            while not all(received):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            steps = self.metric("engine_steps_total")
            before = list(received)
            self.post(CHAT, chat("F09 " + "word " * 3500, max_tokens=1))
            steps = self.metric("engine_steps_total") - steps
            moved = [after - start for after, start in zip(received, before)]
        finally:
            stop.set()
            for s in sockets:
                s.shutdown(socket.SHUT_RDWR)
            for reader in readers:
                reader.join()
            for s in sockets:
                s.close()
        # Every stream got tokens in most of the steps that the prompt took.
        self.assertGreater(steps, 8)
        self.assertGreater(min(moved), steps / 8, (moved, steps))
        self.expect_alive()

    def test_F09_manyRequestsAtOnceLeaveHealthAlone(self):
        statuses = []

        def one(_):
            return request(self.server, "POST", CHAT, chat("Hi", max_tokens=1))[0]

        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            work = [pool.submit(one, i) for i in range(320)]
            for _ in range(20):
                self.assertEqual(request(self.server, "GET", "/health")[0], 200)
            statuses = [item.result() for item in work]
        self.assertLessEqual(set(statuses), {200, 429, 503})
        self.assertGreater(statuses.count(200), 0)
        self.expect_alive()

    # --- I: structured output

    def schema(self, schema, **fields):
        return chat("Write json.", max_tokens=8, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": schema, **fields}})

    def test_I01_propertyThatIsNoSchemaIs400WithItsPath(self):
        answer = self.post(CHAT, self.schema({"type": "object", "properties": {"foo": "bar"}}), 400)
        self.assertEqual(answer["error"]["param"], "response_format.json_schema.schema")
        self.assertIn('"bar"', answer["error"]["message"])
        self.expect_alive()

    def test_I02_aGrammarThatFailsEndsOnlyItsRequest(self):
        with start_endless(self.server) as s:
            while b"data: {" not in s.recv(65536):
                pass
            for _ in range(5):
                answer = self.post(CHAT, chat("x", structured_outputs={"grammar": "root ::= ("}), 400)
                self.assertEqual(answer["error"]["code"], "invalid_schema")
            self.assertIn(b"data: {", s.recv(65536))
        self.expect_alive()

    def test_I03_malformedConstraintsAre400(self):
        schemas = [{"type": "not-a-type"}, {"$ref": "#/$defs/none"}, {"type": "object", "required": "x"},
                   {"type": "array", "items": 5}, {"enum": []}, {"type": "string", "pattern": "("},
                   {"anyOf": "x"}, {"type": "object", "properties": []}]
        for schema in schemas:
            answer = self.post(CHAT, self.schema(schema), 400)
            self.assertTrue(answer["error"]["message"], schema)
        recursive = {"$defs": {"node": {"type": "object", "properties": {
            "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}},
            "$ref": "#/$defs/node"}
        status, _ = request(self.server, "POST", CHAT, self.schema(recursive))
        self.assertIn(status, (200, 400))
        self.expect_alive()

    def test_I04_aPatternThatCannotBeEnforcedFailsClosed(self):
        self.post(CHAT, self.schema({"type": "object", "additionalProperties": False, "required": ["a"],
                                     "properties": {"a": {"type": "string", "pattern": r"^(?<=x)\Ky$"}}},
                                    strict=True), 400)

    # --- J: Responses and Messages

    def responses_body(self, text, **fields):
        return {"model": "deepinfer-tiny", "input": "Go on.", "temperature": 0,
                "reasoning": {"effort": "high"}, "test_force_text": text, **fields}

    def test_J01_idsAreEqualInStreamAndResponse(self):
        tools = [{"type": "function", "name": "get_weather", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}}},
            {"type": "custom", "name": "patch"}]
        text = "Think.</think>Text." + call_text(city="Oslo")
        for forced, kind in ((text, "function_call"),
                             ("Think.</think>" + call_text("patch", input="*** a"), "custom_tool_call")):
            events = events_of(self.post(RESPONSES, self.responses_body(forced, tools=tools, stream=True)))
            final = events[-1][1]["response"]
            added = [e["item"] for name, e in events if name == "response.output_item.added"]
            self.assertEqual([item["id"] for item in added], [item["id"] for item in final["output"]])
            (call,) = [item for item in final["output"] if item["type"] == kind]
            (first,) = [item for item in added if item["type"] == kind]
            self.assertEqual(call["call_id"], first["call_id"])

    def test_J02_noTextIsLostWhateverTheCommit(self):
        text = "Think it over.</think>Some text." + call_text(city="Oslo")
        tools = [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}]
        for commit in (1, 3, "all"):
            events = events_of(self.post(RESPONSES, self.responses_body(
                text, tools=tools, stream=True, test_commit=commit)))
            self.assertEqual([e["sequence_number"] for _, e in events], list(range(len(events))))
            joined = {}
            for name, event in events:
                if name.endswith(".delta"):
                    joined[name] = joined.get(name, "") + event["delta"]
            self.assertEqual(joined["response.reasoning_text.delta"], "Think it over.")
            self.assertEqual(joined["response.output_text.delta"], "Some text.")
            self.assertEqual(json.loads(joined["response.function_call_arguments.delta"]), {"city": "Oslo"})
            names = [name for name, _ in events]
            for done in ("response.reasoning_text.done", "response.output_text.done",
                         "response.function_call_arguments.done"):
                self.assertEqual(names.count(done), 1, done)

    def test_J03_invalidPromptsFillTheErrorAndCount(self):
        before = self.metric("requests_total", outcome="error")
        for body in ({"input": []}, {"input": [{"type": "message", "role": "user", "content": 5}]}):
            answer = self.post(RESPONSES, {"model": "deepinfer-tiny", "stream": True, **body}, 400)
            self.assertTrue(answer["error"]["code"] and answer["error"]["message"])
        self.expect_metric(before + 2, "requests_total", outcome="error")

    def test_J04_countTokensEqualsARealRequest(self):
        tool = {"name": "look_up", "description": "Looks up", "input_schema": {
            "type": "object", "properties": {"word": {"type": "string"}}}}
        for words in (10, 1000, 3500):
            for thinking in ("enabled", "disabled"):
                body = {"model": "deepinfer-tiny", "tools": [tool], "thinking": {"type": thinking},
                        "messages": [{"role": "user", "content": "word " * words}]}
                counted = self.post(MESSAGES + "/count_tokens", body)["input_tokens"]
                usage = self.post(MESSAGES, {**body, "max_tokens": 1})["usage"]
                self.assertEqual(counted, usage["input_tokens"] + usage["cache_read_input_tokens"] +
                                 usage["cache_creation_input_tokens"])

    # --- G and L: images, which the served model does not take

    def image_bodies(self, url):
        """One image in the form of each dialect: by address, or as a data URL."""
        data = url.split("base64,")[-1]
        source = ({"type": "base64", "media_type": "image/png", "data": data}
                  if url.startswith("data:") else {"type": "url", "url": url})
        return (
            (CHAT, {**chat("x"), "messages": [{"role": "user", "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": url}}]}]}),
            (MESSAGES, {"model": "deepinfer-tiny", "max_tokens": 5, "messages": [
                {"role": "user", "content": [{"type": "image", "source": source}]}]}),
            (RESPONSES, {"model": "deepinfer-tiny", "input": [
                {"type": "message", "role": "user", "content": [
                    {"type": "input_image", "image_url": url}]}]}))

    def expect_refused(self, path, body):
        for stream in (False, True):
            error = self.post(path, {**body, "stream": stream}, 400)["error"]
            self.assertEqual(error["type"], "invalid_request_error")
            self.assertIn("does not take images", error["message"])

    def test_G05_anImageUrlThatWouldFailIsRefusedAndNeverFetched(self):
        with socket.create_server(("127.0.0.1", 0)) as host:  # would answer 403
            url = "http://127.0.0.1:%d/picture.png" % host.getsockname()[1]
            refused = self.metric("errors_total", code="unsupported_parameter")
            internal = self.metric("errors_total", code="server_error")
            for path, body in self.image_bodies(url):
                self.expect_refused(path, body)
            self.expect_metric(refused + 6, "errors_total", code="unsupported_parameter")
            self.assertEqual(self.metric("errors_total", code="server_error"), internal)
            host.setblocking(False)
            with self.assertRaises(BlockingIOError):
                host.accept()
        for path, body in self.image_bodies("file:///etc/passwd"):
            self.assertIn("error", self.post(path, body, 400))
        self.expect_alive()

    def test_L02_imagesAreRefusedBeforeAnythingIsDecoded(self):
        png = "iVBORw0KGgoAAAANSUhEUgAAAAQAAAADCAIAAAA7ljmRAAAAFElEQVR4nGPU4DrBAANMDEgAhQMAJB4BAC9G2xQAAAAASUVORK5CYII="
        bomb = "iVBORw0KGgoAAAANSUhEUn//////////CAIAAAA" + "A" * 400_001  # says 2^31 pixels a side
        for data in (png, bomb):
            for path, body in self.image_bodies("data:image/png;base64," + data):
                self.expect_refused(path, body)
        for path, body in self.image_bodies("data:image/png;base64,!!"):
            self.assertIn("base64", self.post(path, body, 400)["error"]["message"])
        self.expect_alive()

    # --- K: speculative decoding

    def test_K05_aToolLoopGivesTheSameTokensWithAndWithoutDrafts(self):
        def loop(server):
            messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
            ids = []
            for turn in range(4):
                answer = self.post(CHAT, {**chat("x", max_tokens=40, frequency_penalty=0.5,
                                                 return_token_ids=True),
                                          "messages": messages, "tools": [WEATHER]}, 200, server)
                ids.append(answer["choices"][0]["token_ids"])
                message = answer["choices"][0]["message"]
                messages.append(message)
                for call in message.get("tool_calls") or []:
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": "sunny"})
                messages.append({"role": "user", "content": "And in Rome, %d?" % turn})
            return ids

        with Server("--spec", "off", "--replay", "exact") as plain, Server("--replay", "exact") as drafting:
            self.assertEqual(loop(plain), loop(drafting))


if __name__ == "__main__":
    unittest.main()
