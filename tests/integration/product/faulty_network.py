"""A network between the processes of a cluster that the test may cut, slow down or reset."""

import os
import pathlib
import socket
import struct
import subprocess
import tempfile
import threading
import time

import support

TO_WORKER, TO_PEER = "to worker", "to peer"


class Proxy:
    """TCP in front of the socket of one worker."""

    def __init__(self, path):
        self.path = path
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.lock = threading.Condition()
        self.held = {}  # direction -> number of the first connection that it holds for
        self.delay_s = 0.0
        self.sockets = []
        self.num_connections = 0
        self.closed = False
        self.acceptor = threading.Thread(target=self._accept, daemon=True)
        self.acceptor.start()

    def _accept(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            worker = socket.socket(socket.AF_UNIX)
            try:
                worker.connect(self.path)
            except OSError:
                peer.close()
                continue
            with self.lock:
                number = self.num_connections
                self.num_connections += 1
                self.sockets += [peer, worker]
            for source, to, direction in ((peer, worker, TO_WORKER), (worker, peer, TO_PEER)):
                threading.Thread(target=self._pump, args=(source, to, direction, number),
                                 daemon=True).start()

    def _pump(self, source, to, direction, number):
        try:
            while True:
                data = source.recv(1 << 16)
                if not data:
                    break
                if self.delay_s:
                    time.sleep(self.delay_s)
                with self.lock:
                    self.lock.wait_for(lambda: self.closed or
                                       number < self.held.get(direction, 1 << 30))
                to.sendall(data)
        except OSError:
            pass
        for one in (source, to):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def hold(self, *directions, first=0):
        """Nothing passes any more, of connections from this number on."""
        with self.lock:
            self.held.update({d: first for d in directions})

    def release(self):
        with self.lock:
            self.held.clear()
            self.lock.notify_all()

    def reset(self):
        """Cuts all connections, as a router that has forgotten them."""
        with self.lock:
            sockets, self.sockets = self.sockets, []
        for one in sockets:
            try:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.shutdown(socket.SHUT_RDWR)
                one.close()
            except OSError:
                pass

    def close(self):
        with self.lock:
            self.closed = True
            self.lock.notify_all()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.acceptor.join()
        self.reset()


class FarGateway:
    """A gateway that reaches the workers of a cluster over proxies; a context manager. Workers
    reach each other over them too."""

    def __init__(self, cluster, *flags):
        self.folder = tempfile.TemporaryDirectory()
        self.proxies = {}
        for worker in cluster.status():
            self.proxies[worker["name"]] = Proxy(worker["endpoint"].removeprefix("unix:"))
        workers = pathlib.Path(self.folder.name, "workers")
        workers.write_text("".join(p.endpoint + "\n" for p in self.proxies.values()))
        self.log = pathlib.Path(self.folder.name, "log")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [support.BINARY, "gateway", str(support.DEMO_MODEL), "--port", "0", "--log-format",
                 "json", "--workers-file", str(workers), *flags],
                stdout=subprocess.DEVNULL, stderr=log, env=dict(os.environ))
        self.wait(lambda: '"server.ready"' in self.text())
        line = next(l for l in self.text().splitlines() if '"server.listening"' in l)
        self.port = int(line.split('"port":')[1].split(",")[0].rstrip("}"))

    def text(self):
        return self.log.read_text()

    def count(self, event):
        return self.text().count('"%s"' % event)

    def wait(self, what, limit_s=60):
        deadline = time.monotonic() + limit_s
        while not what():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError("it did not happen: " + self.text()[-4000:])
            time.sleep(0.02)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        for proxy in self.proxies.values():
            proxy.close()
        self.folder.cleanup()
