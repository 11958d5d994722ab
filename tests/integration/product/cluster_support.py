"""What the tests of clusters share: a cluster of real processes, streams of answers, their check."""

import http.client
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import support

PROMPTS = ["What is a KV cache?", "Write a story about a river.", "Count from one to fifty.",
           "Explain how a compiler works.", "List ten animals.", "Why is the sky blue?"]
MAX_TOKENS = 160


def payload(i):
    """Every other one sampled, with a seed: strict draws do not depend on where they happen."""
    return {"prompt": PROMPTS[i % len(PROMPTS)] + " " * (i // len(PROMPTS)), "stream": True,
            "max_tokens": MAX_TOKENS, "ignore_eos": True, "temperature": i % 2, "seed": i,
            "model": "deepinfer-tiny", "stream_options": {"include_usage": True}}


# Whole answers of every other kind: choices that share a prompt, log-probabilities, a grammar.
WHOLE = [
    ("/v1/completions", {"prompt": "Name three fruits:", "n": 3, "max_tokens": 40, "seed": 7,
                         "temperature": 1, "logprobs": 3}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Describe a cat as JSON."}],
                              "max_tokens": 120, "seed": 8, "temperature": 1,
                              "thinking": {"type": "disabled"},
                              "response_format": {"type": "json_schema", "json_schema": {
                                  "name": "cat", "strict": True, "schema": {
                                      "type": "object", "additionalProperties": False,
                                      "required": ["name", "age"],
                                      "properties": {"name": {"type": "string"},
                                                     "age": {"type": "integer"}}}}}}),
    ("/v1/completions", {"prompt": "word " * 700 + "end", "max_tokens": 30, "temperature": 0}),
]


def ask(port, path, body):
    """The choices of one whole answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", path, json.dumps(dict(body, model="deepinfer-tiny")),
                       {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    if response.status != 200:
        raise AssertionError("%d %s" % (response.status, answer))
    return answer["choices"]


class Stream(threading.Thread):
    """One streamed completion; collects text, the finish reason and the usage."""

    def __init__(self, port, body, key=None):
        super().__init__()
        self.port, self.body, self.key = port, body, key
        self.text, self.events, self.finish, self.usage, self.error = "", 0, None, None, None
        self.start()

    def run(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
            headers = {"Content-Type": "application/json"}
            if self.key:
                headers["Idempotency-Key"] = self.key
            connection.request("POST", "/v1/completions", json.dumps(self.body), headers)
            response = connection.getresponse()
            if response.status != 200:
                raise AssertionError("%d %s" % (response.status, response.read()))
            for line in response:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise AssertionError(event["error"])
                for choice in event.get("choices", []):
                    self.text += choice["text"]
                    self.events += 1
                    self.finish = choice.get("finish_reason") or self.finish
                self.usage = event.get("usage") or self.usage
            connection.close()
        except Exception as error:  # shown by the test that joins
            self.error = error


class Cluster:
    """`deepinfer cluster up` in a folder of its own; a context manager."""

    def __init__(self, *args, tls=False, files=None, model=support.DEMO_MODEL):
        self.folder = tempfile.TemporaryDirectory()
        for name, text in (files or {}).items():
            pathlib.Path(self.folder.name, name).write_text(text)
        self.tls = self.certificate() if tls else []
        self.process = subprocess.Popen(
            [support.BINARY, "cluster", *self.tls, "up", str(model), "--port", "0", "--dir",
             self.folder.name, "--threads", "1", *args],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.pids = {}
        for line in self.process.stdout:
            name, _, pid, endpoint, *_ = line.split()
            self.pids[name] = int(pid)
            if name == "gateway":
                self.port = int(endpoint.rsplit(":", 1)[1])
                break
        self.wait_ready()

    def wait_ready(self):
        deadline = time.monotonic() + support.TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/ready")
                if connection.getresponse().status == 200 and self.all_ready():
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError("the cluster is not ready: " + self.logs())

    def look(self):
        done = support.run("cluster", *self.tls, "status", "--dir", self.folder.name, "--json")
        return json.loads(done.stdout)

    def status(self):
        return self.look()["workers"]

    def busiest(self):
        """Time in steps of the busiest worker over the mean, by role."""
        return self.look()["busiest_worker_ratio"]

    def certificate(self):
        """Flags with a certificate that is its own authority."""
        cert, key = self.folder.name + "/cert.pem", self.folder.name + "/key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", cert, "-days",
                        "1", "-subj", "/CN=deepinfer", "-addext", "subjectAltName=DNS:deepinfer"],
                       check=True, capture_output=True)
        return ["--tls-cert", cert, "--tls-key", key, "--tls-ca", cert]

    def pid_of(self, name):
        """As of now; 0 while the process is not running."""
        listed = json.loads(pathlib.Path(self.folder.name, "cluster.json").read_text())
        return next((p["pid"] for p in listed if p["name"] == name), 0)

    def all_ready(self):
        """Every worker is, and the gateway reaches it."""
        workers = self.status()
        try:
            known = metric(self.port, "gateway_workers_ready")
        except (OSError, http.client.HTTPException):
            return False
        return all(worker["ready"] for worker in workers) and known >= len(workers)

    def logs(self, name="*"):
        return "".join(p.read_text() for p in pathlib.Path(self.folder.name).glob(name + ".log"))

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=support.TIMEOUT_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()
        self.process.stdout.close()
        self.folder.cleanup()


class Gateway:
    """Another gateway for the workers of a cluster; a context manager."""

    def __init__(self, cluster):
        self.process = subprocess.Popen(
            [support.BINARY, "gateway", str(support.DEMO_MODEL), "--port", "0", "--log-format", "json",
             "--workers-file", cluster.folder.name + "/workers"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            event = json.loads(line)
            if event["event"] == "server.listening":
                self.port = event["port"]
            if event["event"] == "server.ready":
                break
        self.reader = threading.Thread(target=self.process.stderr.read, daemon=True)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stderr.close()


class Etcd:
    """etcd on ports of its own; a context manager."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.endpoint, peer = ("127.0.0.1:%d" % s.getsockname()[1] for s in sockets)
        for s in sockets:
            s.close()
        client, peer = "http://" + self.endpoint, "http://" + peer
        self.process = subprocess.Popen(
            ["/usr/bin/etcd", "--data-dir", self.folder.name + "/data", "--unsafe-no-fsync",
             "--listen-client-urls", client, "--advertise-client-urls", client,
             "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
             "--initial-cluster", "default=" + peer],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.folder.cleanup()


def alive(pid):
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False


def metric(port, name, label=""):
    """Sum of the series of one name that have the label."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return sum(float(line.split()[-1]) for line in lines
               if line.startswith(("deepinfer:" + name + "{", "deepinfer:" + name + " "))
               and label in line)


def wait_for(what, limit_s=60):
    deadline = time.monotonic() + limit_s
    while not what():
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen within %d s" % limit_s)
        time.sleep(0.02)


class ClusterCase(unittest.TestCase):
    """Compares answers with those of one process, which it asks once."""

    @classmethod
    def setUpClass(cls):
        with support.Server("--threads", "1") as server:
            streams = [Stream(server.port, payload(i)) for i in range(8)]
            for stream in streams:
                stream.join()
            cls.want = [(s.text, s.finish, s.usage["completion_tokens"]) for s in streams]
            cls.want_whole = [ask(server.port, *request) for request in WHOLE]

    def check(self, streams):
        for i, stream in enumerate(streams):
            stream.join()
            self.assertIsNone(stream.error, "request %d" % i)
            got = (stream.text, stream.finish, stream.usage["completion_tokens"])
            self.assertEqual(got, self.want[i], "request %d" % i)
            extension = stream.usage["deepinfer"]
            self.assertEqual(extension["cached_tokens"] + extension["computed_tokens"]
                             - extension.get("replayed_tokens", 0), stream.usage["prompt_tokens"])

    def expect_nothing_held(self, cluster):
        def idle():
            return all(w["running"] == w["waiting"] == w["kv_tokens"] == 0
                       and w["orphans"] == w["kept_bytes"] == 0
                       and w["hand_offs"]["tickets_granted"] == w["hand_offs"]["tickets_released"]
                       and w["hand_offs"]["pins_acquired"] == w["hand_offs"]["pins_released"]
                       for w in cluster.status())
        wait_for(idle)
