"""A real Chromium for pages: phone and desktop, light and dark, screenshots, axe's rules.

`shots` goes over every view of a page as it is now. The pictures are for people: they land in the
test's folder, or in the folder that PAGE_SHOTS names.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, async_playwright

NAMES = ("chromium", "chromium-headless-shell", "google-chrome")
VIEWS = {"phone": (390, 844), "desktop": (1280, 800)}
UNTIL_S = 30
SCHEMES: tuple[Any, ...] = ("light", "dark")


def chromium() -> str:
    """The browser on this machine."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    return found or pytest.fail(
        "no Chromium on the PATH: apt-get install chromium-headless-shell fonts-dejavu-core"
    )


@dataclass
class Browsed:
    """One open page and everything that went wrong in it."""

    page: Page
    folder: Path
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    async def until(self, expression: str) -> None:
        """Until JavaScript in the page says so. (Playwright's own polling is eval.)"""
        async with asyncio.timeout(UNTIL_S):
            while not await self.page.evaluate(expression):  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def shots(self, name: str) -> None:
        """A picture of every view; each fits its width and breaks no rule of accessibility."""
        for view, (width, height) in VIEWS.items():
            await self.page.set_viewport_size({"width": width, "height": height})
            for scheme in SCHEMES:
                await self.page.emulate_media(color_scheme=scheme)
                file = self.folder / f"{name}-{view}-{scheme}.png"
                await self.page.screenshot(path=file, full_page=True)
                found = await Axe().run(self.page)
                broken = [(v["id"], v["nodes"][0]["html"]) for v in found.response["violations"]]
                assert not broken, f"{file.stem}: {broken}"
                wide = await self.page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{file.stem}: scrolls sideways, {wide} > {width}"


@contextlib.asynccontextmanager
async def browsing(folder: Path) -> AsyncIterator[Browsed]:
    """An empty page in a browser of its own."""
    folder = Path(os.environ.get("PAGE_SHOTS", folder))
    folder.mkdir(parents=True, exist_ok=True)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium(),
            args=["--no-sandbox"],  # CI is root
        )
        try:
            page = await browser.new_page()
            page.set_default_timeout(UNTIL_S * 1000)
            browsed = Browsed(page, folder)
            page.on("pageerror", lambda error: browsed.errors.append(str(error)))
            page.on("request", lambda r: browsed.hosts.add(r.url.split("/")[2]))
            yield browsed
        finally:
            await browser.close()
