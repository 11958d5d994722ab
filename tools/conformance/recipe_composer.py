"""Makes requests of the three dialects from nothing: conversations that hold together, of texts that
look like markup, end in half characters or hold what no person types, and arguments in every
spelling that JSON allows and some that it does not."""

import json
import struct

ATOMS = ("", " ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u2028", "\u2029", "\ufeff", "\u200b",
         "\u200d", "\u0301", "\x00", "\x01", "\x1f", "\x7f", "\x85", "\ufffd", "\uffff", "\U0010ffff",
         "<think>", "</think>", "<think></think>", "<｜User｜>", "<｜Assistant｜>", "<｜System｜>",
         "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "<｜latest_reminder｜>", "<｜▁pad▁｜>",
         "｜DSML｜", "<｜DSML｜ calls>", "</｜DSML｜ calls>", "<｜DSML｜ invoke name=\"f\">",
         "</｜DSML｜ parameter>", "<|DSML|", "<tool_result>", "</tool_result>", "<｜deepseek_image｜>",
         "<｜image｜>", "<｜fim▁hole｜>", "<｜action｜>", "[Unsupported Document]", "json", "JSON",
         "## Tools", "### Updated Tool Schemas", "{", "}", "[", "\"", "\\", "\\n", "\\u0041", "'", "`",
         "1", "12345678901", "3.14", "-0", "1e400", "null", "true", "½", "Ⅷ", "٣", "你好", "こんにちは",
         "안녕", "שלום", "مرحبا", "𝒳", "🙂", "👩‍👩‍👧", "🇩🇪", "é", "e\u0301", "ß", "ﬁ", "İ", "\u0130x",
         "The quick brown fox", "def f(x):\n\treturn x", "a" * 70, " " * 40, "\n" * 9, "!?.,;", "…",
         "http://x.y/z?a=b&c=d#e", "C:\\dir\\file", "<b>&amp;</b>", "$PARAMETER_NAME")
MODELS = ("DeepSeek-V4.1-Flash", "DeepSeek-V4.1-Flash", "DeepSeek-V4-Pro")
NAMES = ("f", "get_weather", "a-b", "A1", "_", "x" * 64, "calls", "invoke", "parameter")
KEYS = ("city", "a", "", " ", "ä", "a b", "a\"b", "a\nb", "string", "arguments", "1", "\u2028", "日本",
        "</｜DSML｜ parameter>", "name=\"x\" string=\"true\"")


class Composer:
    def __init__(self, rng):
        self.rng = rng

    def maybe(self, share):
        return self.rng.random() < share

    def text(self, most=5):
        return "".join(self.rng.choice(ATOMS) for _ in range(self.rng.randrange(most + 1)))

    def number(self):
        kind = self.rng.randrange(6)
        if kind == 0:
            return self.rng.choice((0, 1, -1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1,
                                    2**64, -2**63, -2**63 - 1, 10**30))
        if kind == 1:
            return self.rng.randrange(-1000, 1000)
        if kind == 2:
            return self.rng.choice((0.0, -0.0, 1.0, 0.1, 1e16, 1e15, 123456789012345680.0, 1e-5, 1e-4,
                                    5e-324, 1.7976931348623157e308, 2.5, 1e22, 1e21, 100000.0))
        if kind == 3:
            return round(self.rng.uniform(-1e6, 1e6), self.rng.randrange(10))
        while True:
            value = struct.unpack("<d", self.rng.randbytes(8))[0]
            if value == value and abs(value) != float("inf"):
                return value

    def value(self, depth=3):
        kind = self.rng.randrange(8 if depth else 5)
        if kind == 0:
            return self.rng.choice((None, True, False))
        if kind <= 2:
            return self.number()
        if kind <= 4:
            return self.text()
        if kind == 5:
            return [self.value(depth - 1) for _ in range(self.rng.randrange(4))]
        return self.object(depth - 1)

    def object(self, depth=3):
        return {self.rng.choice(KEYS): self.value(depth) for _ in range(self.rng.randrange(4))}

    def spelled(self, value):
        """JSON text in one of its spellings."""
        text = json.dumps(value, ensure_ascii=self.maybe(0.5), separators=self.rng.choice(
            ((", ", ": "), (",", ":"), (" ,\n", " :\t"))), indent=self.rng.choice((None, None, 2)))
        return self.rng.choice(("", "", " ", "\n\t")) + text + self.rng.choice(("", "", "\n", "  "))

    def arguments(self):
        if self.maybe(0.75):
            return self.spelled(self.object())
        return self.rng.choice((
            "", " ", "{", "{}", "[]", "null", "\"x\"", "1", "{\"a\":1", "{\"a\":1}}", "{'a':1}",
            "{\"a\":NaN}", "{\"a\":1,}", "{\"a\":01}", "{\"a\":1,\"b\":2,\"a\":[3]}", "\ufeff{}",
            "{\"a\":\"\\ud83d\\ude42\"}", "{\"a\":1e999}", "{\"a\":-0,\"b\":-0.0,\"c\":1E+2}",
            "{\"a\":\"\\u0000\\u001f\\u007f\"}", "{\"a\":\"\n\"}", "{\"a\":tru}", "[{\"a\":1}]",
            self.spelled(self.value()), self.text()))

    def schema(self, depth=2):
        kind = self.rng.randrange(6)
        if depth == 0 or kind == 0:
            return {"type": self.rng.choice(("string", "integer", "number", "boolean", "null"))}
        if kind == 1:
            return {"type": "array", "items": self.schema(depth - 1), "minItems": 1}
        if kind == 2:
            return {"enum": [self.value(1) for _ in range(2)], "description": self.text()}
        if kind == 3:
            return {"anyOf": [self.schema(depth - 1), {"type": "null"}]}
        names = [key for key in KEYS if self.maybe(0.2)]
        return {"type": "object", "properties": {name: self.schema(depth - 1) for name in names},
                **({"required": names[:1]} if names and self.maybe(0.5) else {}),
                **({"additionalProperties": self.maybe(0.5)} if self.maybe(0.3) else {})}

    def object_schema(self):
        while True:
            schema = self.schema()
            if schema.get("type") == "object":
                return schema

    def names(self):
        return self.rng.sample(NAMES, self.rng.randrange(1, 4)) if self.maybe(0.5) else []

    def common(self, body):
        for key, choices in (("temperature", (0, 0.0, 1, 0.7, 2)), ("top_p", (1, 0.5, 1.0)),
                             ("stream", (True, False, None))):
            if self.maybe(0.2):
                body[key] = self.rng.choice(choices)
        return body

    def parts(self, kind="text"):
        if self.maybe(0.5):
            return self.text()
        return [{"type": kind, "text": self.text()} for _ in range(self.rng.randrange(1, 4))]

    def chat(self):
        names, messages = self.names(), []
        for _ in range(self.rng.randrange(1, 6)):
            role = self.rng.choice(("system", "user", "user", "assistant", "latest_reminder"))
            if role != "assistant":
                messages.append({"role": role, "content": self.text() if role == "latest_reminder"
                                 else self.parts()})
                continue
            turn = {"role": role, "content": self.parts()}
            if self.maybe(0.5):
                turn["reasoning_content"] = self.text()
            if names and self.maybe(0.6):
                ids = ["id%d" % i for i in range(self.rng.randrange(1, 4))]
                turn["content"] = self.rng.choice((None, "", turn["content"]))
                turn["tool_calls"] = [{"id": i, "type": "function", "function": {
                    "name": self.rng.choice(names), "arguments": self.arguments()}} for i in ids]
                messages.append(turn)
                self.rng.shuffle(ids)
                messages += [{"role": "tool", "tool_call_id": i, "content": self.parts()} for i in ids]
                continue
            messages.append(turn)
        body = self.common({"model": self.rng.choice(MODELS), "messages": messages})
        if names:
            body["tools"] = [{"type": "function", "function": {
                "name": name, **({"description": self.text()} if self.maybe(0.7) else {}),
                **({"parameters": self.object_schema()} if self.maybe(0.8) else {})}}
                for name in names]
            if self.maybe(0.3):
                body["tool_choice"] = self.rng.choice((
                    "auto", "none", "required", {"type": "function", "function": {"name": names[0]}}))
        if self.maybe(0.4):
            body["thinking"] = {"type": self.rng.choice(("enabled", "disabled", "adaptive"))}
        if self.maybe(0.3):
            body["reasoning_effort"] = self.rng.choice(("low", "medium", "high", "max", "none", "xhigh"))
        if self.maybe(0.2):
            body["stop"] = self.rng.choice((self.text() or "x", [self.text() or "y", "\n"]))
        if self.maybe(0.2):
            body["response_format"] = self.rng.choice((
                {"type": "text"}, {"type": "json_object"},
                {"type": "json_schema", "json_schema": {"name": "n", "schema": self.object_schema()}}))
        if messages[-1]["role"] == "assistant" and self.maybe(0.3) and not names:
            messages[-1]["prefix"] = True
        return body

    def messages(self):
        names, turns, ids = self.names(), [], 0
        for _ in range(self.rng.randrange(1, 5)):
            user = self.parts()
            if isinstance(user, list) and self.maybe(0.2):
                user.append({"type": "document", "source": {
                    "type": "base64", "media_type": "application/pdf", "data": "AAAA"}})
            turns.append({"role": "user", "content": user})
            if not self.maybe(0.7):
                continue
            blocks = []
            if self.maybe(0.4):
                blocks.append({"type": "thinking", "thinking": self.text(), "signature": "s"})
            blocks.append({"type": "text", "text": self.text()})
            calls = []
            if names and self.maybe(0.6):
                for _ in range(self.rng.randrange(1, 4)):
                    ids += 1
                    calls.append({"type": "tool_use", "id": "t%d" % ids, "input": self.object(),
                                  "name": self.rng.choice(names)})
            turns.append({"role": "assistant", "content": blocks + calls})
            if calls:
                results = [{"type": "tool_result", "tool_use_id": call["id"],
                            **({"content": self.parts()} if self.maybe(0.8) else {})}
                           for call in calls]
                self.rng.shuffle(results)
                turns.append({"role": "user", "content": results + (
                    [{"type": "text", "text": self.text()}] if self.maybe(0.4) else [])})
        body = self.common({"model": self.rng.choice(MODELS), "max_tokens": 100, "messages": turns})
        if self.maybe(0.5):
            body["system"] = self.parts()
        if names:
            body["tools"] = [{"name": name, "input_schema": self.object_schema(),
                              **({"description": self.text()} if self.maybe(0.7) else {})}
                             for name in names]
            if self.maybe(0.3):
                body["tool_choice"] = self.rng.choice((
                    {"type": "auto"}, {"type": "none"}, {"type": "any"},
                    {"type": "tool", "name": names[0]}))
        if self.maybe(0.4):
            body["thinking"] = self.rng.choice(({"type": "enabled", "budget_tokens": 1024},
                                                {"type": "disabled"}, {"type": "adaptive"}))
        if self.maybe(0.2):
            body["output_config"] = {"effort": self.rng.choice(("low", "medium", "high", "max"))}
        return body

    def responses(self):
        names, items, ids = self.names(), [], 0
        for _ in range(self.rng.randrange(1, 6)):
            kind = self.rng.randrange(4)
            if kind == 0:
                items.append({"type": "reasoning", "summary": [], "content": [
                    {"type": "reasoning_text", "text": self.text()}]})
            elif kind == 1:
                items.append({"type": "message", "role": "assistant",
                              "content": self.parts("output_text")})
            elif kind == 2 and names:
                calls = []
                for _ in range(self.rng.randrange(1, 3)):
                    ids += 1
                    calls.append({"type": "function_call", "call_id": "c%d" % ids,
                                  "name": self.rng.choice(names), "arguments": self.arguments()})
                outputs = [{"type": "function_call_output", "call_id": call["call_id"],
                            "output": self.text()} for call in calls]
                self.rng.shuffle(outputs)
                items += calls + outputs
            else:
                items.append({"role": self.rng.choice(("user", "user", "system", "developer")),
                              "content": self.parts("input_text")})
        body = self.common({"model": self.rng.choice(MODELS),
                            "input": items if self.maybe(0.9) else self.text() or "x"})
        if self.maybe(0.4):
            body["instructions"] = self.text()
        if names:
            body["tools"] = [{"type": "function", "name": name,
                              **({"description": self.text()} if self.maybe(0.7) else {}),
                              **({"parameters": self.object_schema()} if self.maybe(0.8) else {})}
                             for name in names]
        if self.maybe(0.3):
            body["reasoning"] = {"effort": self.rng.choice(("low", "medium", "high", "none", "xhigh"))}
        if self.maybe(0.2):
            body["text"] = {"format": self.rng.choice((
                {"type": "text"}, {"type": "json_object"},
                {"type": "json_schema", "name": "n", "schema": self.object_schema()}))}
        return body

    def next(self, dialect):
        """The text of a body."""
        return self.spelled(getattr(self, dialect)())
