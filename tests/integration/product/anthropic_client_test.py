"""The official Python client for the Messages API against the server on the bundled model."""

import unittest

import anthropic
import support
from support import Server

TOOL = {"name": "look_up", "description": "Looks a word up.",
        "input_schema": {"type": "object", "properties": {"word": {"type": "string"}},
                         "required": ["word"]}}


class AnthropicClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.__exit__)
        cls.client = anthropic.Anthropic(base_url=cls.server.url, api_key="unused",
                                         max_retries=0, timeout=support.TIMEOUT_S)
        cls.addClassCleanup(cls.client.close)

    def request(self, text="What is a KV cache?", thinking=False, **fields):
        kind = {"type": "adaptive"} if thinking else {"type": "disabled"}
        return {"model": "deepinfer-tiny", "max_tokens": 64, "thinking": kind,
                "messages": [{"role": "user", "content": text}],
                "extra_body": {"temperature": 0}, **fields}

    def test_stream_is_the_message(self):
        plain = self.client.messages.create(**self.request())
        with self.client.messages.stream(**self.request()) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, plain.content[0].text)
        self.assertEqual([block.text for block in final.content], [plain.content[0].text])
        self.assertEqual(final.stop_reason, plain.stop_reason)
        self.assertEqual(final.usage.output_tokens, plain.usage.output_tokens)

    def test_events_come_in_the_order_the_client_accepts(self):
        names = [event.type for event in self.client.messages.create(
            **self.request("Hello", thinking=True, max_tokens=200), stream=True)]
        self.assertEqual(names[0], "message_start")
        self.assertEqual(names[-2:], ["message_delta", "message_stop"])
        self.assertEqual(names.count("content_block_start"), names.count("content_block_stop"))

    def test_thinking_is_a_block_with_a_signature(self):
        answer = self.client.messages.create(**self.request("Hello", thinking=True))
        self.assertEqual(answer.content[0].type, "thinking")
        self.assertTrue(answer.content[0].signature)

    def test_count_tokens_is_what_the_answer_counts(self):
        fields = self.request(tools=[TOOL], system="Be short.")
        counted = self.client.messages.count_tokens(
            model=fields["model"], messages=fields["messages"], tools=fields["tools"],
            system=fields["system"], thinking=fields["thinking"])
        usage = self.client.messages.create(**fields).usage
        self.assertEqual(counted.input_tokens, usage.input_tokens +
                         usage.cache_read_input_tokens + usage.cache_creation_input_tokens)

    def test_tool_results_are_taken_back(self):
        messages = [
            {"role": "user", "content": "Look up 'cache'."},
            {"role": "assistant", "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "call_1", "name": "look_up",
                 "input": {"word": "cache"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "a store"}]}]
        answer = self.client.messages.create(**self.request(tools=[TOOL], messages=messages))
        self.assertIn(answer.stop_reason, ("end_turn", "max_tokens", "tool_use"))
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.client.messages.create(**self.request(tools=[TOOL], messages=messages[:2]))
        self.assertIn("tool_result", str(caught.exception))

    def test_marked_prompt_is_read_from_the_cache_the_second_time(self):
        marked = [{"type": "text", "text": "Rule. " * 300,
                   "cache_control": {"type": "ephemeral"}}]
        fields = self.request("Hello", system=marked, max_tokens=4)
        first = self.client.messages.create(**fields).usage
        second = self.client.messages.create(**fields).usage
        self.assertGreater(second.cache_read_input_tokens, first.cache_read_input_tokens)
        total = lambda usage: (usage.input_tokens + usage.cache_read_input_tokens +
                               usage.cache_creation_input_tokens)
        self.assertEqual(total(first), total(second))

    def test_stop_sequences_and_limits(self):
        full = self.client.messages.create(**self.request()).content[0].text
        stop = full[10:14]
        cut = self.client.messages.create(**self.request(stop_sequences=[stop]))
        self.assertEqual((cut.stop_reason, cut.stop_sequence), ("stop_sequence", stop))
        self.assertEqual(cut.content[0].text, full[:full.index(stop)])
        self.assertEqual(self.client.messages.create(**self.request(max_tokens=3)).stop_reason,
                         "max_tokens")

    def test_typed_errors(self):
        with self.assertRaises(anthropic.NotFoundError) as caught:
            self.client.messages.create(**self.request(model="nobody"))
        self.assertEqual(caught.exception.body["error"]["type"], "not_found_error")
        with self.assertRaises(anthropic.BadRequestError):
            self.client.messages.create(**self.request(extra_body={"temperature": 9}))

    def test_models_list(self):
        self.assertEqual([m.id for m in self.client.models.list()][0], "deepinfer-tiny")

    def test_leaving_a_stream_early_frees_the_server(self):
        with self.client.messages.stream(**self.request("Hello", max_tokens=3000)) as stream:
            next(iter(stream))
        after = self.client.messages.create(**self.request(max_tokens=1))
        self.assertEqual(after.usage.output_tokens, 1)


if __name__ == "__main__":
    unittest.main()
