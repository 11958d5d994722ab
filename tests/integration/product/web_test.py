"""The chat page and the dashboard in headless Chromium, against a server with the demo model.

usage: web_test.py [--screenshots FOLDER] BINARY
Without chromium the tests of the pages are skipped with that reason (scripts/setup --tests).
"""

import http.client
import pathlib
import sys
import tempfile
import threading
import unittest

SCREENSHOTS = None
if "--screenshots" in sys.argv:
    at = sys.argv.index("--screenshots")
    SCREENSHOTS = pathlib.Path(sys.argv[at + 1])
    del sys.argv[at:at + 2]

import browser
from bug_cases_test import LONG
from support import Server
from serve_test import chat, request

POLICY_PARTS = ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'")


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.__exit__)

    def get(self, path, server=None):
        connection = http.client.HTTPConnection("127.0.0.1", (server or self.server).port, timeout=60)
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response, body

    def test_pages_have_a_strict_policy_and_nothing_from_outside(self):
        for path in ("/", "/chat", "/dashboard", "/assets/chat.js", "/assets/style.css"):
            response, body = self.get(path)
            self.assertEqual(response.status, 200, path)
            policy = response.getheader("Content-Security-Policy")
            for part in POLICY_PARTS:
                self.assertIn(part, policy)
            self.assertNotIn("unsafe", policy)
            self.assertEqual(response.getheader("X-Content-Type-Options"), "nosniff")
            self.assertNotIn(b"https://", body)
            for inline in (b"<style", b" style=", b"onclick=", b"innerHTML"):
                self.assertNotIn(inline, body, path)
        for path in ("/assets/", "/assets/none.js", "/assets/../chat.html", "/assets/%2e%2e/x",
                     "/v1/dashboard", "/v1/"):
            self.assertEqual(self.get(path)[0].status, 404, path)

    def test_pages_can_be_switched_off(self):
        with Server("--web-pages", "off") as server:
            for path in ("/", "/chat", "/dashboard", "/assets/chat.js"):
                self.assertEqual(self.get(path, server)[0].status, 404)

    def test_version_tells_prices(self):
        status, body = request(self.server, "GET", "/version")
        self.assertEqual(status, 200)
        book = body["price_book"]
        self.assertEqual((book["id"], book["currency"]), ("deepseek-flash-2026-09-10", "USD"))
        self.assertIn((book["hit"], book["miss"], book["output"]),
                      ((3000, 150000, 600000), (6000, 300000, 1200000)))


@unittest.skipUnless(browser.find(), "chromium is not installed (scripts/setup --tests)")
class InTheBrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.__exit__)
        cls.folder = SCREENSHOTS
        if cls.folder is None:
            temporary = tempfile.TemporaryDirectory()
            cls.addClassCleanup(temporary.cleanup)
            cls.folder = pathlib.Path(temporary.name)
        cls.folder.mkdir(parents=True, exist_ok=True)

    def setUp(self):
        self.page = browser.Browser(height=1240 if "dashboard" in self.id() else 720)
        self.addCleanup(self.page.__exit__)

    def shoot(self, name):
        for scheme in ("light", "dark"):
            self.page.colours(scheme)
            path = self.folder / ("%s-%s.png" % (name, scheme))
            self.page.screenshot(path)
            self.assertGreater(path.stat().st_size, 5000)

    def check_clean(self):
        self.assertEqual(self.page.complaints(), [])
        for url in self.page.requested_urls():
            self.assertTrue(url.startswith(self.server.url) or url == "about:blank", url)

    def open_chat(self):
        self.page.open(self.server.url + "/")
        self.page.wait_for("document.getElementById('model').textContent === 'deepinfer-tiny'")

    def ask(self, text):
        self.page.evaluate("document.getElementById('prompt').focus()")
        self.page.type(text)
        self.page.press("Enter", 13)

    def answered(self, number):
        self.page.wait_for("document.querySelectorAll('.assistant .foot button').length === %d" % number)

    def set_setting(self, name, value):
        self.page.evaluate("document.getElementById('open-settings').click()")
        self.page.evaluate("document.querySelector('#settings [name=%s]').value = '%s'" % (name, value))
        self.page.evaluate("document.querySelector('#settings .primary').click()")

    def change_requests(self, fields):
        """Adds fields to the bodies that the page sends from now on."""
        self.page.evaluate("""window.realFetch = window.fetch;
            window.fetch = (url, options) => {
              if (options && options.body) {
                options = {...options, body: JSON.stringify({...JSON.parse(options.body), ...%s})};
              }
              return window.realFetch(url, options); }""" % fields)

    def test_narrow_screens_show_everything(self):
        with browser.Browser(width=360, height=740) as page:
            for path in ("/", "/dashboard"):
                page.open(self.server.url + path)
                page.wait_for("document.querySelector('header .grow').textContent.startsWith('deepinfer-tiny')")
                # Wider than the screen: the reader would have to scroll sideways.
                self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 360, path)
                self.assertEqual(page.evaluate("""[...document.querySelectorAll('header > *, section')]
                    .filter(e => e.getBoundingClientRect().right > innerWidth).length"""), 0, path)
            page.open(self.server.url + "/")
            page.evaluate("document.getElementById('open-settings').click()")
            self.assertEqual(page.evaluate("""[...document.querySelectorAll('#settings [name]')].filter(
                e => e.getBoundingClientRect().right >
                     document.getElementById('settings').getBoundingClientRect().right).length"""), 0)

    def test_a_conversation_with_the_keyboard(self):
        self.open_chat()
        self.set_setting("temperature", "0")
        self.ask("What is a KV cache?")
        self.answered(1)
        text = self.page.evaluate("document.querySelector('.assistant .body').textContent")
        self.assertTrue(text.strip())
        self.assertTrue(self.page.evaluate(
            "!document.querySelector('details').hidden && !document.querySelector('details').open"))
        foot = self.page.evaluate("document.querySelector('.foot').textContent")
        for word in ("cached", "computed", "generated", "first token", "USD", "Copy"):
            self.assertIn(word, foot)
        # The conversation goes on, and its begin is found in the cache or computed again.
        self.ask("Thanks")
        self.answered(2)
        self.assertEqual(self.page.evaluate("document.querySelectorAll('.message').length"), 4)
        self.assertIn("tokens", self.page.evaluate("document.getElementById('total').textContent"))
        self.page.evaluate("document.querySelector('details').open = true")
        self.page.evaluate("document.getElementById('scroll').scrollTop = 0")
        self.shoot("chat")
        self.check_clean()

    def test_the_cost_is_that_of_the_usage(self):
        self.open_chat()
        cost = self.page.evaluate("""import('/assets/format.js').then(({ priceOf }) => priceOf(
            {prompt_tokens: 10240, prompt_cache_hit_tokens: 9856, completion_tokens: 500,
             prompt_tokens_details: {cache_write_tokens: 300}},
            {hit: 6000, miss: 300000, output: 1200000, cache_write: 0}))""")
        self.assertEqual(cost, 774_336_000)

    def test_text_of_a_model_is_never_markup(self):
        self.open_chat()
        self.ask("<img src=x onerror=window.hurt=1><b>bold</b>")
        self.answered(1)
        self.assertEqual(self.page.evaluate("document.querySelectorAll('.message img, .message b').length"), 0)
        self.assertTrue(self.page.evaluate("window.hurt === undefined"))
        self.check_clean()

    def test_escape_stops_an_answer_and_the_engine(self):
        self.open_chat()
        self.set_setting("temperature", "1")
        self.change_requests("{ignore_eos: true, max_tokens: 20000}")
        self.ask("Hello")
        self.page.wait_for("document.querySelector('.assistant .body').textContent.length > 0 || "
                           "!document.querySelector('.assistant details').hidden")
        self.assertTrue(self.page.evaluate("!document.getElementById('stop').hidden"))
        self.page.press("Escape", 27)
        self.answered(1)
        self.assertIn("stopped", self.page.evaluate("document.querySelector('.foot').textContent"))
        self.page.wait_for("""(window.idle ||= setInterval(async () => {
              const text = await (await window.realFetch('/metrics')).text();
              window.running = /deepinfer:num_requests_running\\{[^}]*\\} (\\S+)/.exec(text)[1];
            }, 100)) && window.running === '0'""")

    def test_errors_are_shown(self):
        self.open_chat()
        self.change_requests("{temperature: 9}")
        self.ask("Hello")
        self.answered(1)
        self.assertIn("temperature", self.page.evaluate("document.querySelector('.message .error').textContent"))

    def test_the_dashboard_shows_what_the_server_did(self):
        self.page.open(self.server.url + "/dashboard")
        self.page.wait_for("document.getElementById('state').textContent.startsWith('deepinfer-tiny')")
        self.page.wait_for("document.querySelectorAll('#workers tr').length === 1")
        generated = 0
        for text in ("What is a KV cache?", "Tell me about caches", "What is a KV cache?"):
            status, body = request(self.server, "POST", "/v1/chat/completions",
                                   chat(text, max_tokens=40))
            self.assertEqual(status, 200)
            generated += body["usage"]["completion_tokens"]
        self.page.wait_for("document.querySelector('#ttft dd').textContent !== '–'")
        self.page.wait_for("document.querySelector('#itl dd').textContent !== '–'")
        self.page.wait_for("Number(document.querySelectorAll('#split dd')[2].textContent) >= %d" % generated)
        self.page.wait_for("document.querySelectorAll('#chart-speed path').length === 3")
        self.page.wait_for("document.getElementById('money').textContent.includes('deepseek-flash-2026-09-10')")
        revenue = self.page.evaluate("document.querySelectorAll('#money dd')[3].textContent")
        self.assertGreater(float(revenue), 0)
        self.page.evaluate("""(() => { const rate = document.getElementById('rate'); rate.value = '0.5';
            rate.dispatchEvent(new Event('change')); })()""")
        self.page.wait_for("document.getElementById('money').textContent.includes('0.5000')")
        # A picture with something in it: requests that share a long beginning, a few at a time.
        stop = threading.Event()

        def work(index):
            number = 0
            while not stop.is_set():
                number += 1
                request(self.server, "POST", "/v1/chat/completions",
                        chat("%s Number %d of %d." % (LONG, index, number), max_tokens=60))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        try:
            self.page.wait_for("Number.parseFloat(document.querySelector('#split dd').textContent) > 0")
            if SCREENSHOTS is not None:
                self.page.wait_for("document.querySelector('#chart-queue path').getAttribute('d').length > 300")
            self.shoot("dashboard")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.page.evaluate("document.getElementById('pause').click()")
        self.assertEqual(self.page.evaluate("document.getElementById('pause').getAttribute('aria-pressed')"), "true")
        self.check_clean()

    def test_every_control_is_reached_by_tab(self):
        for path in ("/", "/dashboard"):
            self.page.open(self.server.url + path)
            wanted = self.page.evaluate(
                "[...document.querySelectorAll('a[href], button, input, select, textarea')]"
                ".filter(node => node.offsetParent && !node.closest('dialog')).length")
            seen = set()
            for _ in range(wanted + 4):
                self.page.press("Tab", 9)
                seen.add(self.page.evaluate("(document.activeElement.id || document.activeElement.textContent)"))
            seen.discard("")
            self.assertGreaterEqual(len(seen), wanted, (path, seen))


if __name__ == "__main__":
    unittest.main()
