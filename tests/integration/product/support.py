"""What the tests of the built binary share: run a subcommand, run a server, read safetensors."""

import json
import os
import pathlib
import struct
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[3]
DATA = ROOT / "tests/data"
DEMO_MODEL = ROOT / "models/deepinfer-tiny"
TINY_MODEL = DATA / "golden/tiny_fp8fp4"
TOKENIZER = DATA / "deepseek_v41"
# The last argument names the binary under test; unittest must not see it.
BINARY = os.path.abspath(sys.argv.pop()) if len(sys.argv) > 1 else "deepinfer"
TIMEOUT_S = 300
# Nothing that a test starts writes to the cache folder of the user.
os.environ["XDG_CACHE_HOME"] = os.devnull


def run(*args, stdin=b"", env=None):
    """Runs a subcommand; returns the completed process with bytes in stdout and stderr."""
    environment = dict(os.environ, **(env or {}))
    return subprocess.run([BINARY, *map(str, args)], input=stdin, capture_output=True,
                          timeout=TIMEOUT_S, env=environment)


def read_safetensors(path):
    """{name: (dtype, shape, bytes)} of a file."""
    blob = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", blob[:8])[0]
    header = json.loads(blob[8:8 + size])
    out = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        out[name] = (info["dtype"], info["shape"], blob[8 + size + begin:8 + size + end])
    return out


def floats(raw):
    return struct.unpack("<%df" % (len(raw) // 4), raw)


def ints(raw):
    return list(struct.unpack("<%di" % (len(raw) // 4), raw))


class Server:
    """`deepinfer serve` on a port the system chooses; a context manager."""

    def __init__(self, *args, model=DEMO_MODEL, wait_ready=True, env=None,
                 preexec_fn=None):
        self.process = subprocess.Popen(
            [BINARY, "serve", str(model), "--port", "0", "--log-format", "json", *map(str, args)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=dict(os.environ, **(env or {})), preexec_fn=preexec_fn)
        self.events = []
        self.condition = threading.Condition()
        self.closed = False
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.port = self.wait_event("server.listening")["port"]
        self.url = "http://127.0.0.1:%d" % self.port
        if wait_ready:
            self.wait_event("server.ready")

    def _read(self):
        for line in self.process.stderr:
            try:
                event = json.loads(line)
            except ValueError:
                event = {"event": "text", "text": line}
            with self.condition:
                self.events.append(event)
                self.condition.notify_all()
        with self.condition:
            self.closed = True
            self.condition.notify_all()

    def wait_event(self, name, count=1):
        """The count-th log event of this name; fails when the server ended before."""

        def found():
            matching = [e for e in self.events if e.get("event") == name]
            return matching[count - 1] if len(matching) >= count else None

        with self.condition:
            self.condition.wait_for(lambda: found() or self.closed, timeout=TIMEOUT_S)
            event = found()
        if event is None:
            raise AssertionError("no event %s in %s" % (name, self.events))
        return event

    def stop(self):
        """SIGTERM; returns the exit code."""
        self.process.terminate()
        return self.process.wait(timeout=TIMEOUT_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.reader.join()
        self.process.stderr.close()
