"""The server's page in headless Chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from servers import DEMO, NAME, Served, serving

import ort_aie_ep

# Folder for screenshots to look at, if any.
SCREENSHOTS = os.environ.get("ORT_AIE_SCREENSHOTS")
CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))

# In the page, because a model that is this small has written everything before a driver can click.
STOP_AT_FIRST_TEXT = """
    new MutationObserver(() => {
        const turns = document.getElementsByClassName("model");
        const send = document.getElementById("send");
        if (send.textContent === "Stop" && turns[turns.length - 1].textContent) send.click();
    }).observe(document.getElementById("turns"), {childList: true, subtree: true});
"""

pytestmark = [
    pytest.mark.in_turn,
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None, reason="Chromium and its driver are not installed"
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--window-size=900,700"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(str(DRIVER)))
    yield browser
    browser.quit()


class Page:
    def __init__(self, browser: webdriver.Chrome, served: Served) -> None:
        self.browser = browser
        browser.get(served.url)

    def texts(self, kind: str) -> list[str]:
        found = self.browser.find_elements(By.CLASS_NAME, kind)
        shown = [
            turn.get_attribute("data-text") or turn.get_attribute("textContent") for turn in found
        ]
        return [text or "" for text in shown]

    def state(self) -> str:
        return self.browser.find_element(By.ID, "state").text

    def button(self) -> str:
        return self.browser.find_element(By.ID, "send").text

    def say(self, text: str) -> None:
        self.browser.find_element(By.ID, "text").send_keys(text, Keys.ENTER)

    def until(self, true: object) -> None:
        WebDriverWait(self.browser, 100, 0.02).until(lambda _: true() if callable(true) else true)

    def screenshot(self, name: str) -> bytes:
        picture: bytes = self.browser.get_screenshot_as_png()
        if SCREENSHOTS:
            (Path(SCREENSHOTS) / f"{name}.png").write_bytes(picture)
        return picture


def test_a_conversation_of_two_turns_and_a_stop(browser: webdriver.Chrome, served: Served) -> None:
    page = Page(browser, served)
    page.until(lambda: browser.find_element(By.ID, "model").text == NAME)
    browser.execute_script(
        "at('how').open = true; at('system').value = 'Be brief.'; at('max_tokens').value = 512"
    )
    page.say("import os")
    page.until(lambda: "tokens in" in page.state())
    assert page.state().startswith("Cut: ")
    assert page.texts("user") == ["import os"]
    (first,) = page.texts("model")
    body = {
        "model": NAME,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "import os"},
        ],
        "max_tokens": 512,
    }
    answer = served.post("/v1/chat/completions", json=body, timeout=300).json()
    assert first == answer["choices"][0]["message"]["content"]
    done = page.state()
    browser.execute_script(STOP_AT_FIRST_TEXT)
    page.say("<b>class</b> Test")
    page.until(lambda: len(page.texts("model")) == 2 and page.button() == "Send")
    assert page.texts("user")[1] == "<b>class</b> Test"  # as text
    page.until(lambda: served.requests == 0)
    assert page.state() == done  # the second turn did not come to its end
    assert not page.texts("error")
    picture = page.screenshot("page")
    assert picture.startswith(b"\x89PNG")
    browser.find_element(By.ID, "new").click()
    assert not page.texts("turn")
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []


def test_markdown_becomes_nodes_and_html_stays_text(
    browser: webdriver.Chrome, served: Served
) -> None:
    Page(browser, served)
    text = "# A *b*\n\nx **y** `<i>`\nz\n\n1. one\n\n2. two\n```\n<b>\n```\n<b>[c](https://d.e)</b>"
    drawn = browser.execute_script(
        "const at = document.createElement('div'); at.append(markdown(arguments[0]));"
        "return at.innerHTML",
        text,
    )
    assert drawn == (
        "<h1>A <em>b</em></h1><p>x <strong>y</strong> <code>&lt;i&gt;</code><br>z</p>"
        '<ol start="1"><li>one</li><li>two</li></ol><pre><code>&lt;b&gt;\n</code></pre>'
        '<p>&lt;b&gt;<a href="https://d.e" rel="noopener noreferrer" target="_blank">c</a>'
        "&lt;/b&gt;</p>"
    )


def test_the_page_asks_for_a_key_and_continues_text_without_a_template(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    ort_aie_ep.compile(DEMO, tmp_path / NAME)
    with serving(tmp_path / NAME, "--api-key", "secret", "--max-tokens", "60") as served:
        page = Page(browser, served)
        key = browser.find_element(By.ID, "key")
        page.until(key.is_displayed)
        assert page.texts("error") == ["This server needs an API key."]
        key.send_keys("secret", Keys.TAB)
        page.until(lambda: browser.find_element(By.ID, "model").text == NAME)
        assert page.state() == "This model has no chat template: it continues your text."
        browser.find_element(By.ID, "new").click()
        page.say("def main(argv):")
        page.until(lambda: "60 tokens in" in page.state())
        page.say("\n\n\nclass Test")
        page.until(lambda: len(page.texts("model")) == 2 and "60 tokens in" in page.state())
        page.screenshot("serve")
