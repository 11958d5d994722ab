"""`deepinfer serve` behind TLS: certificates made by openssl, clients in Python, curl and openssl."""

import http.client
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import unittest

import support
from serve_test import chat
from support import DEMO_MODEL, Server

CHAT = "/v1/chat/completions"


class Certificates:
    """An authority, one below it, and what they sign, as PEM files of one folder."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.root = self.make("root", None, authority=True)
        self.middle = self.make("middle", "root", authority=True)

    def openssl(self, *args):
        subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True,
                       timeout=support.TIMEOUT_S, cwd=self.folder)

    def key(self, name):
        path = self.folder / (name + ".key")
        self.openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)
        return path

    def make(self, name, issuer, authority=False):
        """A certificate for this machine, or an authority; returns its path."""
        path, request = self.folder / (name + ".pem"), self.folder / (name + ".csr")
        key = self.key(name)
        self.openssl("req", "-new", "-key", key, "-subj", "/CN=" + name, "-out", request)
        extensions = self.folder / (name + ".ext")
        extensions.write_text("basicConstraints=critical,CA:TRUE\n" if authority else
                              "subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        signer = ["-CA", issuer + ".pem", "-CAkey", issuer + ".key", "-CAcreateserial"] \
            if issuer else ["-signkey", key]
        self.openssl("x509", "-req", "-in", request, "-days", 2, "-extfile", extensions,
                     "-out", path, *signer)
        return path

    def chain(self, name):
        """A leaf signed by the middle authority, with it in one file; its paths."""
        leaf = self.make(name, "middle")
        path = self.folder / (name + "-chain.pem")
        path.write_text(leaf.read_text() + self.middle.read_text())
        return path, self.folder / (name + ".key")


def flags(certificate, key, *more):
    return ("--ssl-certfile", certificate, "--ssl-keyfile", key, *more)


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, folder)
        cls.certificates = Certificates(folder)
        cls.certificate, cls.key = cls.certificates.chain("server")
        cls.server = Server(*flags(cls.certificate, cls.key, "--enable-ssl-refresh"))
        cls.addClassCleanup(cls.server.__exit__)

    def context(self):
        return ssl.create_default_context(cafile=self.certificates.root)

    def connect(self, server=None, context=None):
        return http.client.HTTPSConnection("127.0.0.1", (server or self.server).port,
                                           context=context or self.context(),
                                           timeout=support.TIMEOUT_S)

    def ask(self, connection, path=CHAT, body=None):
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None,
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()

    def curl(self, *args):
        return subprocess.run(
            ["curl", "--silent", "--show-error", "--cacert", self.certificates.root, *map(str, args)],
            capture_output=True, text=True, timeout=support.TIMEOUT_S)

    def test_several_requests_share_a_verified_connection(self):
        connection = self.connect()
        status, plain = self.ask(connection, body=chat())
        self.assertEqual(status, 200, plain)
        # The whole chain came from the server: the client knows the root only.
        first = connection.sock
        text = json.loads(plain)["choices"][0]["message"]["content"]
        status, raw = self.ask(connection, body=chat(stream=True))
        self.assertEqual(status, 200)
        self.assertIs(connection.sock, first)
        self.assertGreaterEqual(connection.sock.version(), "TLSv1.2")
        events = [json.loads(line[6:]) for line in raw.decode().split("\n\n")
                  if line.startswith("data: {")]
        self.assertEqual("".join(e["choices"][0]["delta"].get("content") or "" for e in events), text)
        # A body of many records, refused for what is in it.
        status, answer = self.ask(connection, body={"model": "deepinfer-tiny", "x": "y" * (4 << 20)})
        self.assertEqual(status, 400, answer)
        connection.close()

    def test_every_read_holds_whole_events(self):
        with socket.create_connection(("127.0.0.1", self.server.port),
                                      timeout=support.TIMEOUT_S) as plain, \
                self.context().wrap_socket(plain, server_hostname="127.0.0.1") as client:
            body = json.dumps(chat(stream=True, max_tokens=20))
            client.sendall(("POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                            "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                            % (CHAT, len(body), body)).encode())
            reads = []
            while True:
                read = client.recv(1 << 16)
                if not read:  # a truncated answer would raise: the server said goodbye
                    break
                reads.append(read)
        for read in reads:
            self.assertTrue(read.endswith(b"\r\n"), read)

    def test_curl_and_openssl_verify(self):
        url = "https://localhost:%d" % self.server.port
        done = self.curl(url + "/health")
        self.assertEqual((done.returncode, done.stdout), (0, '{"status":"ok"}'), done.stderr)
        unknown = subprocess.run(["curl", "--silent", url + "/health"], capture_output=True,
                                 timeout=support.TIMEOUT_S)
        self.assertNotEqual(unknown.returncode, 0, "an unknown authority must not be trusted")
        for version in ("-tls1_2", "-tls1_3"):
            done = subprocess.run(
                ["openssl", "s_client", "-connect", "127.0.0.1:%d" % self.server.port, version,
                 "-CAfile", self.certificates.root, "-verify_return_error", "-alpn", "h2,http/1.1",
                 "-ign_eof"],
                input="GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                capture_output=True, text=True, timeout=support.TIMEOUT_S)
            self.assertIn("Verify return code: 0 (ok)", done.stdout, done.stderr)
            self.assertIn("ALPN protocol: http/1.1", done.stdout)
            self.assertIn("HTTP/1.1 200 OK", done.stdout)

    def test_plain_bytes_get_no_answer(self):
        with socket.create_connection(("127.0.0.1", self.server.port),
                                      timeout=support.TIMEOUT_S) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            got = b""
            try:
                while read := client.recv(4096):
                    got += read
            except ConnectionResetError:
                pass
        self.assertNotIn(b"HTTP", got)

    def test_a_client_that_leaves_is_cancelled(self):
        connection = self.connect()
        connection.request("POST", CHAT, json.dumps(
            chat(stream=True, max_tokens=32000, ignore_eos=True)),
            {"Content-Type": "application/json"})
        connection.getresponse().read(100)
        connection.sock.close() if connection.sock else None
        connection.close()
        deadline = time.monotonic() + support.TIMEOUT_S
        while True:
            metrics = self.ask(self.connect(), "/metrics")[1].decode()
            running = next(line for line in metrics.splitlines()
                           if line.startswith("deepinfer:num_requests_running{"))
            if running.endswith(" 0"):
                break
            self.assertLess(time.monotonic(), deadline, running)
            time.sleep(0.02)

    def test_changed_certificates_are_taken_up_and_broken_ones_are_not(self):
        def seen():
            pem = ssl.get_server_certificate(("127.0.0.1", self.server.port))
            return pem.strip() in self.certificate.read_text()

        before = self.connect()
        self.assertEqual(self.ask(before, "/health")[0], 200)
        self.assertTrue(seen())
        replaced = self.certificate.read_text()
        fresh, fresh_key = self.certificates.chain("fresh")
        self.certificate.write_text("half a certificate")
        self.server.wait_event("http.certificates_unusable")
        self.assertEqual(self.ask(self.connect(), "/health")[0], 200)
        os.replace(fresh_key, self.key)
        self.certificate.write_text(fresh.read_text())
        self.assertNotEqual(replaced, self.certificate.read_text())
        self.server.wait_event("http.certificates_reloaded")
        self.assertTrue(seen())
        # Connections of before go on.
        self.assertEqual(self.ask(before, "/health")[0], 200)
        before.close()

    def test_clients_must_show_a_certificate_where_authorities_are_given(self):
        client, client_key = self.certificates.chain("client")
        other = Certificates(tempfile.mkdtemp(dir=self.certificates.folder))
        stranger, stranger_key = other.chain("stranger")
        certificate, key = self.certificates.chain("mutual")
        with Server(*flags(certificate, key, "--ssl-ca-certs", self.certificates.root)) as server:
            known = self.context()
            known.load_cert_chain(client, client_key)
            self.assertEqual(self.ask(self.connect(server, known), "/health")[0], 200)
            foreign = self.context()
            foreign.load_cert_chain(stranger, stranger_key)
            for context in (self.context(), foreign):
                with self.assertRaises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
                    self.ask(self.connect(server, context), "/health")

    def test_certificates_that_cannot_be_used_end_the_start(self):
        certificate, key = self.certificates.chain("right")
        other_key = self.certificates.key("other")
        locked = self.certificates.folder / "locked.key"
        self.certificates.openssl("ec", "-in", key, "-aes128", "-passout", "pass:x", "-out", locked)
        for arguments, reason in (
                (flags(certificate, other_key), "does not belong to the certificate"),
                (flags(certificate, locked), "--ssl-keyfile"),
                (flags(certificate, "/nowhere.key"), "/nowhere.key"),
                (flags("/nowhere.pem", key), "/nowhere.pem"),
                (flags(key, key), "--ssl-certfile"),
                (("--ssl-certfile", certificate), "belong together"),
                (flags(certificate, key, "--ssl-ciphers", "NOTHING"), "--ssl-ciphers")):
            done = support.run("serve", DEMO_MODEL, "--port", "0", *arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(reason, done.stderr.decode(), arguments)


if __name__ == "__main__":
    unittest.main()
