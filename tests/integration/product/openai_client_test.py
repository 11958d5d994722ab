"""The official Python client against the server on the bundled model."""

import unittest

import openai
import support
from support import Server


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.__exit__)
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="unused",
                                   max_retries=0, timeout=support.TIMEOUT_S)
        cls.addClassCleanup(cls.client.close)

    def chat(self, text="What is a KV cache?", thinking=False, **fields):
        kind = "enabled" if thinking else "disabled"
        return self.client.chat.completions.create(
            model="deepinfer-tiny", messages=[{"role": "user", "content": text}],
            extra_body={"thinking": {"type": kind}}, **{"temperature": 0, **fields})

    def test_models_list(self):
        names = [m.id for m in self.client.models.list()]
        self.assertEqual(names[0], "deepinfer-tiny")
        self.assertEqual(self.client.models.retrieve(names[0]).id, names[0])

    def test_stream_with_usage_equals_the_plain_answer(self):
        plain = self.chat()
        text, usage, finish = "", None, None
        for chunk in self.chat(stream=True, stream_options={"include_usage": True}):
            if chunk.usage is not None:
                usage = chunk.usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
        self.assertEqual(text, plain.choices[0].message.content)
        self.assertEqual(finish, plain.choices[0].finish_reason)
        self.assertEqual(usage.completion_tokens, plain.usage.completion_tokens)
        self.assertEqual(usage.prompt_tokens, plain.usage.prompt_tokens)
        self.assertEqual(plain.usage.total_tokens,
                         plain.usage.prompt_tokens + plain.usage.completion_tokens)
        self.assertIsNotNone(plain.usage.prompt_tokens_details.cached_tokens)

    def test_two_choices_and_seed(self):
        first = self.chat(n=2, temperature=1, seed=3, max_tokens=16)
        again = self.chat(n=2, temperature=1, seed=3, max_tokens=16)
        self.assertEqual([c.index for c in first.choices], [0, 1])
        self.assertEqual([c.message.content for c in first.choices],
                         [c.message.content for c in again.choices])

    def test_logprobs(self):
        answer = self.chat(logprobs=True, top_logprobs=3, max_tokens=5)
        entries = answer.choices[0].logprobs.content
        self.assertEqual(len(entries), 5)
        for entry in entries:
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertEqual(entry.logprob, max(t.logprob for t in entry.top_logprobs))

    def test_stop_and_length(self):
        full = self.chat().choices[0].message.content
        stop = full[10:14]
        cut = self.chat(stop=[stop])
        self.assertEqual(cut.choices[0].message.content, full[:full.index(stop)])
        self.assertEqual(cut.choices[0].finish_reason, "stop")
        self.assertEqual(self.chat(max_tokens=3).choices[0].finish_reason, "length")

    def test_thinking_has_its_own_field(self):
        message = self.chat("Hello", thinking=True, max_tokens=200).choices[0].message
        self.assertTrue(hasattr(message, "reasoning_content"))

    def test_completions(self):
        answer = self.client.completions.create(model="deepinfer-tiny", prompt="Hello",
                                                max_tokens=4, temperature=0, logprobs=1)
        self.assertEqual(answer.usage.completion_tokens, 4)
        self.assertEqual(len(answer.choices[0].logprobs.tokens), 4)

    def test_responses_stream_is_the_response(self):
        fields = {"model": "deepinfer-tiny", "input": "What is a KV cache?", "temperature": 0,
                  "max_output_tokens": 64, "reasoning": {"effort": "none"}}
        plain = self.client.responses.create(**fields)
        with self.client.responses.stream(**fields) as stream:
            numbers = [event.sequence_number for event in stream
                       if hasattr(event, "sequence_number")]
            final = stream.get_final_response()
        self.assertEqual(final.output_text, plain.output_text)
        self.assertEqual(numbers, sorted(numbers))
        self.assertEqual(final.usage.output_tokens, plain.usage.output_tokens)
        self.assertEqual(plain.usage.total_tokens,
                         plain.usage.input_tokens + plain.usage.output_tokens)
        self.assertIsNotNone(plain.usage.input_tokens_details.cached_tokens)

    def test_responses_history_is_sent_whole(self):
        first = self.client.responses.create(
            model="deepinfer-tiny", input="Hello", max_output_tokens=16,
            reasoning={"effort": "none"})
        history = [{"role": "user", "content": "Hello"},
                   *[item.model_dump(exclude_none=True) for item in first.output],
                   {"role": "user", "content": "And you?"}]
        self.assertTrue(self.client.responses.create(
            model="deepinfer-tiny", input=history, max_output_tokens=4).status)
        with self.assertRaises(openai.BadRequestError):
            self.client.responses.create(model="deepinfer-tiny", input="x",
                                         previous_response_id=first.id)

    def test_typed_errors(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="nobody", messages=[
                {"role": "user", "content": "x"}])
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=9)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat("word " * 40000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")

    def test_leaving_a_stream_early_frees_the_server(self):
        with self.chat("Hello", stream=True, max_tokens=3000,
                       ) as stream:
            next(iter(stream))
        self.assertTrue(self.chat(max_tokens=1).choices)


if __name__ == "__main__":
    unittest.main()
