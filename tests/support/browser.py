"""A real browser without a screen: Debian's Chromium, driven by its own driver.

Always true: whatever a page may not do (run injected script, open a dialog, break its content-security policy) is
found by `quiet`; screenshots go to SCREENSHOTS (by default build/screenshots), from where CI keeps them.
"""

import base64
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from selenium import webdriver
from selenium.common.exceptions import NoAlertPresentException, StaleElementReferenceException
from selenium.webdriver.chrome.service import Service as Driver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.support.service import ROOT
from tests.support.tools import missing
from tests.support.waiting import wait_until

SCREENSHOTS: Final = Path(os.environ.get("SCREENSHOTS") or ROOT / "build" / "screenshots")
WIDE: Final = (1280, 900)
PHONE: Final = (390, 844)
TALLEST: Final = 4000
CANARY: Final = "__canary"


class Browser:
    """One browser window."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """Go to a page and wait until it is there."""
        self.driver.get(address)

    def fresh(self) -> None:
        """As if it had just been started: nothing of an earlier test is left."""
        self.driver.get("about:blank")
        self.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        self.size(*WIDE)
        self.log()

    # -- how it looks -------------------------------------------------------------------

    def size(self, width: int, height: int) -> None:
        """The window's size, a phone's below 500 pixels."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )

    def dark(self) -> None:
        """Prefer dark pages."""
        wanted = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)

    def without_scripts(self) -> None:
        """Run no script at all."""
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})

    def screenshot(self, name: str) -> Path:
        """Keep the whole page as a picture."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        found = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": found["width"], "height": min(found["height"], TALLEST), "scale": 1}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path = SCREENSHOTS / f"{name}.png"
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    # -- what is there ------------------------------------------------------------------

    def all(self, selector: str) -> list[WebElement]:
        """Every element."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str, deadline_s: float = 10.0) -> WebElement:
        """The first such element, when there is one."""
        return wait_until(lambda: self.all(selector), deadline_s, f"{selector} on {self.driver.current_url}")[0]

    def text(self, selector: str = "body") -> str:
        """The visible text of the first such element; empty while there is none."""
        try:
            found = self.all(selector)
            return found[0].text if found else ""
        except StaleElementReferenceException:  # refreshed just then
            return ""

    def wait_text(self, wanted: str, selector: str = "body", deadline_s: float = 10.0) -> None:
        """Wait until *wanted* is shown."""
        wait_until(
            lambda: wanted in self.text(selector), deadline_s, f"{wanted!r} in {selector}: {self.text(selector)}"
        )

    def script(self, text: str, *arguments: Any) -> Any:
        """Run a script of the test's own in the page."""
        return self.driver.execute_script(text, *arguments)

    def log(self) -> list[str]:
        """What the browser has noted since the last time."""
        return [line["message"] for line in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def quiet(self) -> None:
        """Assert that nothing ran that should not have, and that nothing tried to."""
        try:
            said = self.driver.switch_to.alert.text
        except NoAlertPresentException:
            said = None
        assert said is None, f"a dialog was opened: {said}"
        assert self.script(f"return window.{CANARY}") is None, f"injected script ran on {self.driver.current_url}"
        blocked = [line for line in self.log() if _violation(line)]
        assert not blocked, f"the page tried what its policy forbids: {blocked}"


def _violation(message: str) -> bool:
    return "Content Security Policy" in message or "Content-Security-Policy" in message


@contextmanager
def started() -> Iterator[Browser]:
    """A browser; it is gone at the end."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        missing("Chromium is not installed: apt install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",  # the tests may be run by root
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--lang=en-GB",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.set_capability("unhandledPromptBehavior", "ignore")
    driver = webdriver.Chrome(options=options, service=Driver(chromedriver))
    driver.set_page_load_timeout(30)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
