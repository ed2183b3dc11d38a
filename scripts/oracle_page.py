#!/usr/bin/env python3
"""The chat page in a real browser: it streams, shows reasoning and tool calls, writes what the model says as text whatever
it says, keeps to its Content-Security-Policy, and works with a key.

  oracle_page.py --server EXE --work DIR

Needs Debian's chromium and chromium-driver and `pip install selenium`; exits with 77 (skipped) where they are missing."""
import argparse
import base64
import pathlib
import shutil
import subprocess
import sys
import unittest

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select, WebDriverWait
except ImportError:
    print("skipped: selenium is not installed")
    sys.exit(77)

KEY = "sk-test-of-the-page"
OPTIONS = None
TOOLS = """[{"type": "function", "function": {"name": "get_weather",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]"""


class Page(unittest.TestCase):
    arguments = []

    @classmethod
    def setUpClass(cls):
        cls.process = subprocess.Popen([OPTIONS.server, *cls.arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       text=True)
        cls.url = cls.process.stdout.readline().strip()
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                     f"--user-data-dir={pathlib.Path(OPTIONS.work).resolve() / cls.__name__}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        cls.browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()
        cls.process.stdin.close()
        cls.process.wait(timeout=20)
        cls.process.stdout.close()

    def setUp(self):
        self.browser.get(self.url + "/")
        self.browser.get_log("browser")

    def tearDown(self):
        # A policy that the page itself breaks shows here.
        problems = [entry["message"] for entry in self.browser.get_log("browser")
                    if entry["level"] == "SEVERE" and "status of 401" not in entry["message"]]
        self.assertEqual(problems, [])

    def find(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def wait(self, condition, seconds=30):
        return WebDriverWait(self.browser, seconds, poll_frequency=0.02).until(lambda _: condition())

    def send(self, text):
        question = self.find("#question")[0]
        question.send_keys(text)
        question.send_keys(Keys.ENTER)

    def finished(self, replies):
        self.wait(lambda: len(self.find(".figures")) == replies)

    def test_conversation(self):
        self.wait(lambda: self.find("#model")[0].text == "scripted")
        self.send("say: Let me see.</think>Hello, 世界.")
        self.finished(1)
        self.assertEqual(self.find(".user")[0].text, "say: Let me see.</think>Hello, 世界.")
        self.assertEqual(self.find(".reasoning")[0].text, "Let me see.")
        self.assertEqual(self.find(".text")[0].text, "Hello, 世界.")
        self.assertIn("hash ", self.find(".figures")[0].text)
        self.send("say: </think>Second.")
        self.finished(2)
        self.assertEqual(self.find(".text")[1].text, "Second.")
        self.find("#reset")[0].click()
        self.assertEqual(self.find("#log > *"), [])

    def test_text_stays_text(self):
        evil = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script><b>bold</b>"
        self.send("say: " + evil + "</think>" + evil)
        self.finished(1)
        self.assertEqual(self.find(".text")[0].text, evil)
        self.assertEqual(self.find(".reasoning")[0].text, evil)
        self.assertEqual(self.find("#log img, #log script, #log b"), [])
        self.assertEqual(self.browser.title, "verbatim")

    def test_policy_stops_injected_script(self):
        self.browser.execute_script(
            "const s = document.createElement('script'); s.textContent = \"document.title = 'taken'\";"
            "document.body.append(s);")
        self.assertEqual(self.browser.title, "verbatim")
        refused = [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]
        self.assertTrue(any("Content Security Policy" in message for message in refused), refused)

    def test_tool_call_and_result(self):
        self.find("header details summary")[0].click()
        self.find("#tools")[0].send_keys(TOOLS)
        Select(self.find("#effort")[0]).select_by_visible_text("low")
        self.send("say: I look.</think>Looking: <tool_call>get_weather<arg_key>city</arg_key><arg_value><i>Oslo</i></arg_value>"
                  "</tool_call>")
        self.finished(1)
        self.assertEqual(self.find(".call .name")[0].text, "get_weather")
        self.assertEqual(self.find(".call .arguments")[0].text, '{"city": "<i>Oslo</i>"}')
        self.find(".call .result")[0].send_keys("say: </think>It rains.")
        self.find(".results")[0].click()
        self.finished(2)
        self.assertEqual(self.find(".text")[-1].text, "It rains.")

    def test_refusals_are_shown(self):
        self.find("#temperature")[0].clear()
        self.find("#temperature")[0].send_keys("9999")
        self.send("say: x")
        self.wait(lambda: self.find(".problem"))
        self.assertIn("temperature", self.find(".problem")[0].text)
        self.browser.get_log("browser")  # a 400, as meant


class SlowPage(Page):
    arguments = ["--step-ms", "30"]
    test_conversation = test_text_stays_text = test_policy_stops_injected_script = None
    test_tool_call_and_result = test_refusals_are_shown = None

    def test_streams_and_stops(self):
        self.send("say: </think>" + "word " * 300)
        lengths = set()
        self.wait(lambda: lengths.add(len(self.find(".text")[0].text) if self.find(".text") else 0) or len(lengths) > 8)
        self.find("#stop")[0].click()
        self.finished(1)
        self.assertIn("broken off", self.find(".figures")[0].text)
        self.send("say: </think>Next.")
        self.finished(2)
        self.assertEqual(self.find(".text")[-1].text, "Next.")


class KeyedPage(Page):
    test_conversation = test_text_stays_text = test_policy_stops_injected_script = None
    test_tool_call_and_result = test_refusals_are_shown = None

    @classmethod
    def setUpClass(cls):
        keys = pathlib.Path(OPTIONS.work) / "page-keys"
        keys.write_text(KEY + "\n")
        keys.chmod(0o600)
        cls.arguments = ["--keys", str(keys)]
        super().setUpClass()

    def setUp(self):
        # What a reader answers when the browser asks for the page's password.
        self.browser.execute_cdp_cmd("Network.enable", {})
        word = base64.b64encode(f"any:{KEY}".encode()).decode()
        self.browser.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {"Authorization": "Basic " + word}})
        super().setUp()
        self.browser.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {}})

    def test_key(self):
        self.send("say: </think>x")
        self.wait(lambda: self.find(".problem"))
        self.assertIn("key", self.find(".problem")[0].text)
        self.find("#key")[0].send_keys(KEY)
        self.send("say: </think>Open.")
        self.finished(1)
        self.assertEqual(self.find(".text")[0].text, "Open.")
        kept = self.browser.execute_script("return [localStorage.length, sessionStorage.length, document.cookie]")
        self.assertEqual(kept, [0, 0, ""])
        self.assertNotIn(KEY, self.browser.current_url)
        self.setUp()
        self.assertEqual(self.find("#key")[0].get_attribute("value"), "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("tests", nargs="*")
    OPTIONS = parser.parse_args()
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        print("skipped: chromium or chromedriver is not installed")
        sys.exit(77)
    pathlib.Path(OPTIONS.work).mkdir(parents=True, exist_ok=True)
    unittest.main(argv=[sys.argv[0], *OPTIONS.tests])
