"""The Python package as its users have it: the same answers as the server, streams, threads, errors."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
import unittest

import support
from serve_test import chat, request, stream_events
from support import DEMO_MODEL, Server

import deepinfer
from deepinfer import LLM, SamplingParams

PLAIN = {"thinking": {"type": "disabled"}}


class PythonPackage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(DEMO_MODEL, max_model_len=2048)
        cls.addClassCleanup(cls.llm.close)

    def running(self, llm=None):
        text = (llm or self.llm).request("GET", "/metrics")
        return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                    if line.startswith("deepinfer:num_requests_running{"))

    def wait_running(self, count, llm=None):
        deadline = time.monotonic() + support.TIMEOUT_S
        while self.running(llm) != count:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def test_answers_are_those_of_the_server(self):
        params = SamplingParams(temperature=0.8, seed=3, max_tokens=24, top_p=0.9, logprobs=2)
        prompts = ["Once upon a time", "The number of"]
        messages = [{"role": "user", "content": "What is a KV cache?"}]
        raw = self.llm.generate(prompts, params)
        answer = self.llm.chat(messages, params, **PLAIN)
        pieces = list(self.llm.stream(messages, params, **PLAIN))
        with Server("--max-model-len", "2048") as server:
            for prompt, output in zip(prompts, raw):
                status, body = request(server, "POST", "/v1/completions", {
                    "model": "deepinfer-tiny", "prompt": prompt, "temperature": 0.8, "seed": 3,
                    "max_tokens": 24, "top_p": 0.9, "logprobs": 2})
                self.assertEqual(status, 200, body)
                self.assertEqual(output.text, body["choices"][0]["text"])
                self.assertEqual(output.outputs[0].logprobs, body["choices"][0]["logprobs"])
                self.assertEqual(output.prompt, prompt)
                self.assertEqual(len(output.outputs[0].token_ids),
                                 body["usage"]["completion_tokens"])
            body = chat(messages[0]["content"], temperature=0.8, seed=3, max_tokens=24, top_p=0.9)
            plain = request(server, "POST", "/v1/chat/completions", body)[1]
            events = stream_events(server, {**body, "stream": True})
        self.assertEqual(answer.text, plain["choices"][0]["message"]["content"])
        self.assertEqual(answer.outputs[0].finish_reason, plain["choices"][0]["finish_reason"])
        self.assertEqual(len(answer.prompt_token_ids), plain["usage"]["prompt_tokens"])
        self.assertEqual("".join(piece.text for piece in pieces), answer.text)
        self.assertEqual("".join(e["choices"][0]["delta"].get("content") or "" for e in events),
                         answer.text)
        self.assertEqual(pieces[-1].usage["completion_tokens"], answer.usage["completion_tokens"])
        self.assertEqual(sum((piece.token_ids for piece in pieces), []),
                         answer.outputs[0].token_ids)

    def test_many_prompts_come_back_in_order(self):
        params = [SamplingParams(temperature=0, max_tokens=1 + i % 5, ignore_eos=True)
                  for i in range(40)]
        outputs = self.llm.generate([self.llm.tokenize("Number %d" % i) for i in range(40)], params)
        self.assertEqual([len(o.outputs[0].token_ids) for o in outputs],
                         [p.max_tokens for p in params])
        for i in (0, 39):
            self.assertTrue(self.llm.detokenize(outputs[i].prompt_token_ids).endswith("Number %d" % i))

    def test_conversations_with_structured_answers_and_choices(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
                  "additionalProperties": False}
        answers = self.llm.chat(
            [[{"role": "user", "content": "Number %d as JSON" % i}] for i in range(3)],
            SamplingParams(n=2, seed=1, max_tokens=60, structured_outputs={"json": schema}), **PLAIN)
        self.assertEqual(len(answers), 3)
        for answer in answers:
            self.assertEqual([choice.index for choice in answer.outputs], [0, 1])
            for choice in answer.outputs:
                if choice.finish_reason == "stop":
                    self.assertIsInstance(json.loads(choice.text)["n"], int)

    def test_refusals_are_exceptions_that_name_the_field(self):
        with self.assertRaises(deepinfer.InvalidRequestError) as refused:
            self.llm.generate("x", SamplingParams(temperature=3))
        self.assertEqual((refused.exception.status, refused.exception.param), (400, "temperature"))
        self.assertIsInstance(refused.exception, ValueError)
        with self.assertRaises(deepinfer.ContextLengthError):
            self.llm.generate([[5] * 3000])
        with self.assertRaises(deepinfer.InvalidRequestError):
            list(self.llm.stream([{"role": "nobody", "content": "x"}]))
        with self.assertRaises(ValueError):
            self.llm.generate(["a", "b"], [SamplingParams()])
        with self.assertRaises(FileNotFoundError):
            LLM("/nowhere")
        with self.assertRaises(ValueError):
            LLM(DEMO_MODEL, no_such_flag=1)
        # A batch with one bad prompt leaves nothing running.
        with self.assertRaises(deepinfer.DeepInferError):
            self.llm.generate([[5], [-1], [6]], SamplingParams(max_tokens=500, ignore_eos=True))
        self.wait_running(0)

    def test_leaving_a_stream_cancels_it(self):
        stream = self.llm.stream("Once", SamplingParams(max_tokens=2000, ignore_eos=True))
        next(stream)
        self.assertEqual(self.running(), 1)
        stream.close()
        self.wait_running(0)

    def test_threads_run_while_the_engine_computes_and_close_ends_their_calls(self):
        with LLM(DEMO_MODEL) as llm:
            failures = []

            def generate():
                try:
                    llm.generate("Once", SamplingParams(max_tokens=30000, ignore_eos=True))
                except deepinfer.CancelledError as error:
                    failures.append(error)

            threads = [threading.Thread(target=generate) for _ in range(2)]
            for thread in threads:
                thread.start()
            # Only because the lock of the interpreter is free while those threads wait.
            self.wait_running(2, llm)
            llm.close()
            for thread in threads:
                thread.join(support.TIMEOUT_S)
            self.assertEqual(len(failures), 2)
            with self.assertRaises(RuntimeError):
                llm.generate("x")

    def test_ctrl_c_interrupts_a_call(self):
        # The signal comes once the call runs, however long that takes.
        script = textwrap.dedent("""
            import os, re, signal, sys, threading, time
            from deepinfer import LLM, SamplingParams

            def interrupt(llm):
                running = re.compile(r"^deepinfer:num_requests_running{.*} 1$", re.M)
                while not running.search(llm.request("GET", "/metrics")):
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGINT)

            with LLM(sys.argv[1], max_model_len=1 << 20, kv_cache_tokens=40000) as llm:
                thread = threading.Thread(target=interrupt, args=[llm])
                try:
                    thread.start()
                    llm.generate("Once", SamplingParams(max_tokens=390000, ignore_eos=True))
                except KeyboardInterrupt:
                    print("interrupted")
                thread.join()
        """)
        done = subprocess.run([sys.executable, "-c", script, str(DEMO_MODEL)],
                              capture_output=True, text=True, timeout=support.TIMEOUT_S)
        self.assertEqual((done.returncode, done.stdout), (0, "interrupted\n"), done.stderr)

    def test_the_example_of_the_readme_runs(self):
        text = (support.ROOT / "python/README.md").read_text(encoding="utf-8")
        (example,) = re.findall(r"```python\n(.*?)```", text, re.S)
        self.assertLessEqual(len(example.splitlines()), 25)
        out = io.StringIO()
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(support.ROOT)
        with contextlib.redirect_stdout(out):
            exec(compile(example, "example", "exec"), {})
        self.assertIn("'Paged attention is' -> ", out.getvalue())
        self.assertGreater(len(out.getvalue()), 100)


if __name__ == "__main__":
    unittest.main()
