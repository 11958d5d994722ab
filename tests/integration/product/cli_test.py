"""The tool subcommands, as a user or a checking script calls them."""

import json
import os
import pathlib
import pty
import select
import shutil
import socket
import subprocess
import tempfile
import time
import unittest

import support
from support import DATA, DEMO_MODEL, TINY_MODEL, TOKENIZER, run

VOCAB = 512


class Tools(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)

    def path(self, name):
        return pathlib.Path(self.dir.name) / name

    def ids_file(self, ids):
        path = self.path("ids.json")
        path.write_text(json.dumps(ids))
        return path

    def logits(self, golden, *args):
        ids = support.ints(support.read_safetensors(golden)["tokens"][2])
        out = self.path("logits.f32")
        result = run("logits", TINY_MODEL, "--tokens", self.ids_file(ids), "--out", out, *args)
        self.assertEqual(result.returncode, 0, result.stderr)
        return out.read_bytes()

    def test_tokenize_and_detokenize(self):
        cases = json.loads((DATA / "text/tokenizer_cases.json").read_text())
        checked = 0
        for case in cases[:12]:
            if "text" not in case or "ids" not in case:
                continue
            text = case["text"].encode()
            got = json.loads(run("tokenize", TOKENIZER, stdin=text).stdout)
            self.assertEqual(got, {"ids": case["ids"]}, case["name"])
            plain = case["ids"] if case.get("ids_plain", "same") == "same" else case["ids_plain"]
            got = json.loads(run("tokenize", TOKENIZER, "--plain", stdin=text).stdout)
            self.assertEqual(got, {"ids": plain}, case["name"])
            back = run("detokenize", TOKENIZER, stdin=json.dumps({"ids": case["ids"]}).encode())
            self.assertEqual(json.loads(back.stdout)["text"], case["text"], case["name"])
            checked += 1
        self.assertGreater(checked, 5)

    def test_encode_gives_prompt_or_error(self):
        body = {"model": "DeepSeek-V4.1-Flash", "thinking": {"type": "disabled"},
                "messages": [{"role": "user", "content": "What is 2+2?"}]}
        result = run("encode", TOKENIZER, "--dialect", "chat", stdin=json.dumps(body).encode())
        self.assertEqual(result.returncode, 0, result.stderr)
        got = json.loads(result.stdout)
        self.assertEqual(got["ids"],
                         [0, 128803, 3085, 344, 223, 20, 13, 20, 33, 128804, 128822])
        self.assertEqual(set(got), {
            "prompt", "ids", "special_ranges", "image_sources", "thinking_mode", "tool_choice",
            "reasoning_effort", "response_format", "tool_names", "inference", "parsing", "stream"})
        body["messages"] = []
        result = run("encode", TOKENIZER, "--dialect", "chat", stdin=json.dumps(body).encode())
        self.assertEqual(result.returncode, 2)
        self.assertEqual(json.loads(result.stdout)["error"]["status"], 400)

    def test_parse_follows_the_recording(self):
        lines = (DATA / "text/recipe_stream_chat.jsonl").read_text().splitlines()
        case = next(c for c in map(json.loads, lines) if "tool" in c["name"])
        line = json.dumps({k: case[k] for k in ("request", "options", "chunks", "finish")})
        result = run("parse", TOKENIZER, "--dialect", "chat", stdin=line.encode() + b"\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        got = json.loads(result.stdout)
        self.assertEqual(got["final"]["choices"], case["expect"]["final"]["choices"])

    def test_logits_agree_with_the_golden_runs(self):
        for name, args, limit in (("f32_L63", ["--numerics", "ref"], 2e-2),
                                  ("f32_L5", ["--numerics", "ref", "--chunk", "2"], 1e-4),
                                  ("f32_actq_L5", ["--numerics", "ref_actq"], 2e-4),
                                  ("f32_nokvq_L129", ["--cache-quant", "off"], 1e-3)):
            golden = DATA / "golden" / (name + ".safetensors")
            got = support.floats(self.logits(golden, *args))
            want = support.floats(support.read_safetensors(golden)["logits"][2])
            self.assertEqual(len(got), len(want))
            self.assertLess(max(abs(a - b) for a, b in zip(got, want)), limit, name)

    def test_logits_do_not_depend_on_chunks_threads_or_kernels(self):
        golden = DATA / "golden/f32_L129.safetensors"
        for mode in ("ref_actq", "prod"):
            want = self.logits(golden, "--numerics", mode, "--isa", "scalar")
            for args in (["--chunk", "1"], ["--chunk", "64", "--threads", "2"], ["--isa", "avx2"]):
                self.assertEqual(self.logits(golden, "--numerics", mode, *args), want, (mode, args))

    def test_generate_is_greedy_by_default(self):
        golden = support.read_safetensors(DATA / "golden/f32_greedy_L63.safetensors")
        result = run("generate", TINY_MODEL, "--tokens",
                     self.ids_file(support.ints(golden["prompt"][2])), "--max-tokens", 32,
                     "--numerics", "ref", "--ignore-eos")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout),
                         {"ids": support.ints(golden["generated"][2]), "finish_reason": "length"})

    def test_generate_repeats_with_a_seed(self):
        args = ["generate", TINY_MODEL, "--tokens", self.ids_file([5, 6, 7]), "--max-tokens", 16,
                "--temperature", "1", "--seed"]
        first, again, other = (run(*args, seed).stdout for seed in (1, 1, 2))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_run_answers_a_prompt(self):
        result = run("run", DEMO_MODEL, "What is a KV cache?")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(b"cache", result.stdout.lower())

    def test_chat_keeps_history_and_takes_commands(self):
        talk = b"/help\nHello\n/think on\n/nonsense\n/reset\n/quit\n"
        result = run("chat", DEMO_MODEL, stdin=talk)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(b"/temperature", result.stdout)
        self.assertIn(b"Unknown command", result.stdout)
        self.assertIn(b"(thinking on)", result.stdout)

    def test_chat_on_a_terminal(self):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(support.BINARY, [support.BINARY, "chat", str(DEMO_MODEL)])
        seen = b""

        def expect(text):
            nonlocal seen
            while text not in seen:
                ready, _, _ = select.select([terminal], [], [], support.TIMEOUT_S)
                self.assertTrue(ready, "no %r after %r" % (text, seen))
                seen += os.read(terminal, 4096)
            seen = seen[seen.index(text) + len(text):]

        expect(b"> ")
        os.write(terminal, b"\x03")
        expect(b"/quit leaves")
        os.write(terminal, b"Hello\n")
        expect(b"> ")
        expect(b"help you")
        os.write(terminal, b"/quit\n")
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        os.close(terminal)

    def test_inspect_reports_the_model(self):
        result = run("inspect", DEMO_MODEL, "--json", "--verify-weights")
        self.assertEqual(result.returncode, 0, result.stderr)
        got = json.loads(result.stdout)
        self.assertTrue(got["valid"])
        self.assertEqual(got["decoder_start"], 4)
        self.assertEqual(got["parts"]["total"]["tensors"], 1204)
        self.assertAlmostEqual(got["parts"]["total"]["parameters"] / 1e6, 18.6, delta=0.1)


class BadInput(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.model = pathlib.Path(self.dir.name) / "model"

    def expect_failure(self, args, words, code=1, stdin=b""):
        result = run(*args, stdin=stdin)
        self.assertEqual(result.returncode, code, result)
        for word in words:
            self.assertIn(word, result.stderr.decode())

    def copy_model(self):
        shutil.copytree(DEMO_MODEL, self.model)

    def test_unknown_flags_and_commands_suggest_the_nearest(self):
        self.expect_failure(["serve", "--prot", "1"], ["--port"], code=2)
        self.expect_failure(["srve"], ["serve"], code=2)

    def wait_until_ready(self, path, server):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and server.poll() is None:
            with socket.socket(socket.AF_UNIX) as s:
                try:
                    s.connect(str(path))
                    s.sendall(b"GET /ready HTTP/1.0\r\n\r\n")
                    if b" 200 " in s.recv(100):
                        return
                except OSError:
                    pass
            time.sleep(0.1)
        self.fail("ended with %s" % server.poll())

    # Of logs, progress and what a command prints.
    def test_a_reader_that_goes_away_ends_no_process(self):
        read, write = os.pipe()
        os.close(read)
        path = pathlib.Path(self.dir.name) / "socket"
        server = subprocess.Popen([support.BINARY, "serve", DEMO_MODEL, "--port", "0",
                                   "--kv-dir", "none", "--uds", path],
                                  stdout=write, stderr=write)
        self.addCleanup(server.kill)
        self.wait_until_ready(path, server)
        server.terminate()
        self.assertEqual(server.wait(30), 0)
        for command in (["inspect", DEMO_MODEL], ["config", "print", "--effective"], ["version"],
                        ["serve", "--port", "x"], ["run", DEMO_MODEL, "hi", "--max-tokens", "2"]):
            ended = subprocess.run([support.BINARY, *command], stdout=write, stderr=write, timeout=60)
            self.assertIn(ended.returncode, (0, 1, 2), command)
        os.close(write)

    def test_flag_values_are_checked(self):
        for args, word in ((["--port", "abc"], "--port"), (["--port", "65536"], "whole number from 0 to 65535"),
                           (["--threads", "-1"], "--threads"), (["--timeout", "nan"], "--timeout"),
                           (["--queue-timeout", "0"], "--queue-timeout"),
                           (["--drain-timeout", "inf"], "--drain-timeout"),
                           (["--tp", "2"], "--tensor-parallel-size"),
                           (["-tp", "2"], "--tensor-parallel-size"),
                           (["-dp", "2"], "cluster up"),
                           (["--ep", "8"], "--expert-parallel-size"),
                           (["--enable-eplb"], "--eplb"),
                           (["--vision", "on"], "--vision"),
                           (["-np", "0"], "--max-num-seqs"),
                           (["--kv-memory", "10"], "--kv-memory"),
                           (["--kv-memory", "1000000000", "--kv-cache-tokens", "99999"],
                            "--kv-cache-tokens"),
                           (["--speculative-config", '{"method":"eagle"}'], "dspark"),
                           (["--speculative-config", "x"], "JSON object"),
                           (["--default-chat-template-kwargs", '{"thinking":1}'], "boolean"),
                           (["--model-alias", "a=b"], "--model-alias"),
                           (["--config", "/nonexistent.toml"], "/nonexistent.toml"),
                           (["--served-model-name"], "--served-model-name"),
                           (["--served-model-name", ""], "--served-model-name"),
                           (["--run-id="], "--run-id"), (["--api-key=", "--port", "0"], "--api-key"),
                           (["--tenant-budget", "nan"], "--tenant-budget"),
                           (["--tpot-target-ms", "inf"], "--tpot-target-ms"),
                           (["--max-body", "-7"], "--max-body"),
                           (["--global-ban", "abc"], "abc is not a whole number from 0"),
                           (["--ssl-ca-certs", "x.pem"], "--ssl-certfile"),
                           (["--enable-ssl-refresh"], "--ssl-certfile"),
                           (["--otlp-traces-endpoint", "x"], "--otlp-traces-endpoint")):
            self.expect_failure(["serve", DEMO_MODEL, *args], [word], code=2)
        for flag in ("--api-key-file", "--price-book", "--cost-book", "--trace-file"):
            self.expect_failure(["serve", DEMO_MODEL, flag, "/nonexistent/x"], [flag])
        for tool in ("encode", "parse"):
            self.expect_failure([tool, TOKENIZER, "--dialect", "other"], ["--dialect"], code=2)

    def test_input_of_the_tools_is_checked(self):
        for tool, text, word in (
                (["detokenize", TOKENIZER], b"nonsense", "JSON"),
                (["detokenize", TOKENIZER], b'{"ids":[1e9]}', "token id 0"),
                (["detokenize", TOKENIZER], b'{"ids":[999999]}', "999999"),
                (["encode", TOKENIZER, "--dialect", "chat", "--option", "x"], b"{}", "name=json"),
                (["encode", TOKENIZER, "--dialect", "chat", "--option", "x=1"], b"{}", "x"),
                (["parse", TOKENIZER, "--dialect", "chat"], b"\njunk", "line 2"),
                (["parse", TOKENIZER, "--dialect", "chat"], b'{"request":{}}', "model")):
            self.expect_failure(tool, [word], code=2, stdin=text)
        self.assertEqual(run("tokenize", TOKENIZER).stdout, b'{"ids":[]}\n')

    def test_prompts_need_not_be_utf8(self):
        prompt = b"\xff\xfe hello \xc3"
        result = run("run", DEMO_MODEL, "-", "--max-tokens", 4, stdin=prompt)
        self.assertEqual(result.returncode, 0, result.stderr)
        talk = prompt + b"\n" + b"a" * 1_000_000 + b"\n/quit\n"
        result = run("chat", DEMO_MODEL, "--max-tokens", 4, stdin=talk)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(b"the context is", result.stderr)

    def test_unknown_configuration_keys_suggest_the_nearest(self):
        path = pathlib.Path(self.dir.name) / "c.toml"
        path.write_text("prot = 1\n")
        self.expect_failure(["config", "print", "--config", path], ["prot", "port"], code=2)

    def test_tables_group_the_keys_of_a_configuration_file(self):
        path = pathlib.Path(self.dir.name) / "c.toml"
        path.write_text("[engine]\nmax_num_seqs = 3\nreplay = 'exact'\n"
                        "[kv]\nspace_mb = 77\nttl-agent-h = 5\n[server]\nport = 9\n")
        result = run("config", "print", "--config", path)
        rows = {line.split()[0]: line.split()[1:] for line in result.stdout.decode().splitlines()}
        self.assertEqual(rows["max-num-seqs"], ["3", "file"])
        self.assertEqual(rows["replay"], ["exact", "file"])
        self.assertEqual(rows["kv-space-mb"], ["77", "file"])
        self.assertEqual(rows["kv-ttl-agent-h"], ["5", "file"])
        self.assertEqual(rows["port"], ["9", "file"])
        for text, words in (("[engin]\nport = 1\n", ["unknown table 'engin'", "'engine'"]),
                            ("[engine]\nmax_num_seq = 1\n",
                             ["engine.max_num_seq", "'max-num-seqs'"]),
                            ("port = 1\n[server]\nport = 2\n", ["server.port", "second time"]),
                            ("[server.port]\nx = 2\n", ["server.port", "must be a value"])):
            path.write_text(text)
            self.expect_failure(["config", "print", "--config", path], words, code=2)

    def test_flags_come_before_environment_before_file(self):
        path = pathlib.Path(self.dir.name) / "c.toml"
        path.write_text("port = 1\nmax_model_len = 100\nthreads = 3\n")
        result = run("config", "print", "--config", path, "--port", 5,
                     env={"DEEPINFER_PORT": "4", "DEEPINFER_THREADS": "2"})
        rows = {line.split()[0]: line.split()[1:] for line in result.stdout.decode().splitlines()}
        self.assertEqual(rows["port"], ["5", "flag"])
        self.assertEqual(rows["threads"], ["2", "environment"])
        self.assertEqual(rows["max-model-len"], ["100", "file"])

    def test_missing_model_folder(self):
        self.expect_failure(["inspect", self.model], ["model"])

    def test_truncated_shard(self):
        self.copy_model()
        shard = self.model / "model-00001-of-00001.safetensors"
        with open(shard, "r+b") as f:
            f.truncate(shard.stat().st_size - 1000)
        self.expect_failure(["inspect", self.model], [shard.name])

    def test_missing_special_token_ends_chat_but_not_inspect(self):
        self.copy_model()
        path = self.model / "tokenizer.json"
        path.write_text(path.read_text().replace("<｜User｜>", "<｜Nobody｜>"))
        self.expect_failure(["run", self.model, "hi"], ["<｜User｜>"])

    def test_hostile_tokenizer(self):
        self.copy_model()
        (self.model / "tokenizer.json").write_bytes(b"[" * 10_000_000)
        self.expect_failure(["inspect", self.model], ["tokenizer.json"])

    def test_configuration_of_another_model(self):
        self.copy_model()
        path = self.model / "config.json"
        config = json.loads(path.read_text())
        config["text_config"]["num_attention_heads"] = 8
        path.write_text(json.dumps(config))
        self.expect_failure(["inspect", self.model], ["wq_b"])

    def test_configuration_that_breaks_a_rule(self):
        self.copy_model()
        path = self.model / "config.json"
        good = path.read_text()
        bad = json.loads(good)
        bad["text_config"]["num_attention_heads"] = -1
        for text, words in ((json.dumps(bad), ["num_attention_heads"]), (good[:50], ["JSON"]),
                            ("[]", ["object"])):
            path.write_text(text)
            for command in (["inspect", self.model], ["serve", self.model, "--port", 0],
                            ["run", self.model, "hi"]):
                self.expect_failure(command, ["config", *words])

    def test_token_files(self):
        path = pathlib.Path(self.dir.name) / "ids.json"
        out = pathlib.Path(self.dir.name) / "out"
        for text, words in (("[1, 2", ["JSON"]), ("[1, -2]", ["token id"]), ("[]", ["no ids"]),
                            ("[1, 512]", ["512"]), ('{"a": 1}', ["array"])):
            path.write_text(text)
            self.expect_failure(["logits", TINY_MODEL, "--tokens", path, "--out", out], words,
                                code=2)


if __name__ == "__main__":
    unittest.main()
