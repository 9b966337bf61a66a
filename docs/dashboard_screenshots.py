"""Take the pictures in docs/dashboard-*.png from the committed records: python docs/dashboard_screenshots.py

Needs Chromium and Playwright (pip install '.[dashboard,dev]' in your clone).
"""

import shutil
import socket
import threading
from pathlib import Path

import uvicorn
from playwright.sync_api import sync_playwright

from oelm.cli.report import judge
from oelm.dashboard.server import build

DOCS = Path(__file__).resolve().parent
METHODS = "compare?scope=in%3Amethods%2Fmethods-confirm&px=time&py=score"


def main() -> None:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    server = uvicorn.Server(uvicorn.Config(build([DOCS.parent / "results"], judge), log_level="error", lifespan="off"))
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])

        def picture(
            name: str,
            view: str,
            wait: str,
            size: tuple[int, int] = (1400, 860),
            dark: bool = False,
            lang: str = "en-US",
        ):
            width, height = size
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", locale=lang
            )
            page.goto(f"{address}#/{view}")
            page.locator(wait).first.wait_for(timeout=60_000)
            page.wait_for_timeout(2500)  # charts settle, gaps come in
            page.screenshot(path=DOCS / f"dashboard-{name}.png")
            return page

        overview = picture("overview", "?q=methods%2Fmethods-confirm", "td.gap span")
        overview.locator("td.run a", has_text="signs_qk+rank=8-0").first.click()
        overview.locator(".network").wait_for()
        run = overview.url.partition("#/")[2]
        picture("run", run, ".chart .trace", (1400, 1120))
        picture("compare", METHODS, ".chart .trace", (1400, 1180))
        picture("compare-dark-zh", METHODS, ".chart .trace", (1400, 860), dark=True, lang="zh-CN")
        picture("claims", "claims", ".claim")
        picture("phone", "?q=methods%2Fmethods-confirm", "td.gap span", (390, 760))
        browser.close()
    server.should_exit = True


if __name__ == "__main__":
    main()
