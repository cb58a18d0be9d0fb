"""Takes the pictures of docs/onnx.md: what `python -m cudarelu view` shows of the demo model.

pip install netron playwright   # and a Chromium of the system
python docs/pictures/model_view.py
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import netron
from playwright.sync_api import sync_playwright

import cudarelu.onnx

SIZE = {"width": 800, "height": 420}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        model = Path(folder) / "demo.onnx"
        model.write_bytes(cudarelu.onnx.demo_model().SerializeToString())
        host, port = netron.start(str(model), browse=False)
        address = f"http://{host}:{port}"
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport=SIZE, color_scheme=scheme)
            # The page asks for consent to reports of its use and sends them: not wanted here.
            context.add_cookies([{"name": "consent", "value": "1", "url": address}])
            context.route(lambda url: not url.startswith(address), lambda route: route.abort())
            page = context.new_page()
            page.goto(address)
            page.locator("text=CustomRelu").first.click()
            page.locator("#sidebar-content").get_by_text("domain").wait_for()
            page.wait_for_timeout(1000)  # the sidebar slides in
            page.screenshot(path=Path(__file__).with_name(f"model-view-{scheme}.png"))
        browser.close()
        netron.stop()


if __name__ == "__main__":
    main()
