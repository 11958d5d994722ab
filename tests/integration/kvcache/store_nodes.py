"""Processes of kvcache_store_node, and file systems for them to share."""

import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

ANSWER_S = 120


class Node:
    """A process that shares a store. Commands: see store_node.cc."""

    def __init__(self, binary, folder, name, **options):
        words = [f"{key}={value}" for key, value in options.items()]
        self.process = subprocess.Popen([binary, folder, name, *words], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, bufsize=1)
        self.name = name
        first = self._read_line()
        assert first == "ready", f"{name}: {first}"

    def send(self, *words):
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()

    def _read_line(self):
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_S)
        assert ready, f"{self.name} does not answer"
        return self.process.stdout.readline().strip()

    def receive(self):
        return self._read_line().split()

    def ask(self, *words):
        self.send(*words)
        return self.receive()

    def publish(self, chain, blocks):
        """(blocks committed, monotonic microseconds)"""
        answer = self.ask("publish", chain, blocks)
        assert answer[0] == "published", answer
        return int(answer[1]), int(answer[2])

    def wait(self, chain, blocks, wait_ms=30_000):
        """(blocks found, monotonic microseconds)"""
        answer = self.ask("wait", chain, blocks, wait_ms)
        assert answer[0] == "found", answer
        return int(answer[1]), int(answer[2])

    def load(self, chain, blocks, deadline_ms=30_000):
        """Blocks that came with the right bytes, milliseconds, reason of the first miss."""
        answer = self.ask("load", chain, blocks, deadline_ms)
        assert answer[0] == "loaded", answer
        assert answer[2] == "0", f"{self.name}: wrong bytes in chain {chain}: {answer}"
        return int(answer[1]), int(answer[3]), answer[4]

    def stats(self):
        self.send("stats")
        return json.loads(self._read_line())

    def signal(self, number):
        os.kill(self.process.pid, number)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Lets it end by itself; its exit status."""
        self.process.stdin.close()
        return self.process.wait(timeout=ANSWER_S)

    def close(self):
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.kill()


def until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


class LocalFolder:
    """A folder of the local file system, the same for every node."""

    def __init__(self):
        self.root = tempfile.mkdtemp(prefix="deepinfer-kv-")

    def folder(self, _index, name):
        return os.path.join(self.root, name)

    def close(self):
        shutil.rmtree(self.root, ignore_errors=True)


class Unavailable(Exception):
    """Why a file system cannot be had here."""


class GlusterVolume:
    """A GlusterFS volume of one brick, mounted once per node: every node has its own client, cache
    and view. Daemons and files live below a temporary folder and end with the object."""

    # Peers must see each other's writes within half a second, so nothing may be cached longer.
    VOLUME_OPTIONS = {"performance.quick-read": "off", "performance.io-cache": "off",
                      "performance.stat-prefetch": "off", "performance.read-ahead": "off",
                      "performance.write-behind": "off", "performance.open-behind": "off",
                      "network.ping-timeout": "120"}
    MOUNT_OPTIONS = "attribute-timeout=0,entry-timeout=0,negative-timeout=0"

    def __init__(self, mounts):
        self._check()
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="deepinfer-gluster-"))
        self.daemon = None
        self.mounts = []
        self.brick_pid = None
        try:
            self._start(mounts)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _check():
        if not os.path.exists("/dev/fuse"):
            raise Unavailable("no /dev/fuse")
        if os.geteuid() != 0:
            raise Unavailable("mounting needs root")
        for program in ("glusterd", "gluster", "mount.glusterfs"):
            if shutil.which(program) is None:
                raise Unavailable(f"{program} is not installed (glusterfs-server, glusterfs-client)")
        if subprocess.run(["gluster", "--timeout=5", "volume", "list"], capture_output=True,
                          check=False).returncode == 0:
            raise Unavailable("a glusterd that is not ours is running")

    def _run(self, *words):
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != 0:
            raise Unavailable(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def _start(self, mounts):
        # glusterd keeps its state in fixed folders unless its volume file names another.
        state = self.root / "state"
        state.mkdir()
        volfile = self.root / "glusterd.vol"
        volfile.write_text(f"""volume management
    type mgmt/glusterd
    option working-directory {state}
    option transport-type socket
    option transport.socket.listen-port 24007
end-volume
""")
        self.daemon = subprocess.Popen(
            ["glusterd", "--no-daemon", f"--volfile={volfile}", f"--log-file={self.root}/log",
             f"--pid-file={self.root}/pid"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: self.daemon.poll() is not None or
              subprocess.run(["gluster", "--timeout=5", "volume", "list"], capture_output=True,
                             check=False).returncode == 0, 180, "glusterd")
        if self.daemon.poll() is not None:
            raise Unavailable("glusterd does not start")
        brick = self.root / "brick"
        brick.mkdir()
        self._run("gluster", "--mode=script", "volume", "create", "kv",
                  f"{socket.gethostname()}:{brick}", "force")
        for key, value in self.VOLUME_OPTIONS.items():
            self._run("gluster", "--mode=script", "volume", "set", "kv", key, value)
        self._run("gluster", "--mode=script", "volume", "start", "kv")
        for index in range(mounts):
            mount = self.root / f"mount{index}"
            mount.mkdir()
            self._run("mount", "-t", "glusterfs", "-o",
                      f"{self.MOUNT_OPTIONS},log-file={self.root}/mount{index}.log",
                      f"{socket.gethostname()}:/kv", str(mount))
            self.mounts.append(mount)
        for pid_file in (state / "vols/kv/run").glob("*.pid"):
            self.brick_pid = int(pid_file.read_text())
        for pid_file in pathlib.Path("/var/run/gluster/vols/kv").glob("*.pid"):
            self.brick_pid = self.brick_pid or int(pid_file.read_text())
        if self.brick_pid is None:
            raise Unavailable("the brick has no process")

    def folder(self, index, name):
        return str(self.mounts[index] / name)

    def stall(self, stalled):
        """The brick answers no more, or again."""
        os.kill(self.brick_pid, signal.SIGSTOP if stalled else signal.SIGCONT)

    def close(self):
        if self.brick_pid is not None:
            self.stall(False)
        for mount in self.mounts:
            subprocess.run(["umount", "-l", str(mount)], capture_output=True, check=False)
        if self.brick_pid is not None:
            subprocess.run(["gluster", "--mode=script", "volume", "stop", "kv", "force"],
                           capture_output=True, check=False, timeout=300)
        if self.daemon is not None:
            self.daemon.terminate()
            try:
                self.daemon.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
        shutil.rmtree(self.root, ignore_errors=True)
