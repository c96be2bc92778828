"""Pictures of every view of the dashboard from a real browser; some are in docs/images."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.dashboard.browsing import N, Reader, Stage, await_drawn, whole
from tests.web.scenes import imagining, scene_of, tell

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

PICTURE_BYTES_MAX = 200_000
PNG_HEAD_BYTES = 8
PICTURE = {"width": 1280, "height": 800}
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
DARK_VIEWS = frozenset({"ring", "healing", "256"})  # the others are shown in light only
REPLAYED = 8  # Guess: this many moments ago the ring was still healing.
CALM_TICKS = 45  # Guess: by then all effects of the damage are gone.
REQUESTS_MAX = 2.0  # in an interval; the bound is about 0.9
TEXTS = (
    ("config: rollout v12 at 25 %", "eu-west"),
    ("cache: user/4711 is stale", "user/4711"),
    ("order 1042 is paid", ""),
    ("config: rollout v12 at 50 %", "eu-west"),
    ("hello from the page", ""),
)


@pytest.fixture(scope="module")
def slow(browser: Browser) -> Iterator[Stage]:
    """Yield a ring that heals slowly enough for pictures."""
    with Stage(N, chaos=True, tick_s=2.0) as stage:
        yield stage


@pytest.fixture
def quick(browser: Browser) -> Iterator[Stage]:
    """Yield a ring that heals soon and has no publications."""
    with Stage(N, chaos=True, tick_s=0.35) as stage:
        yield stage


def is_blank(png: bytes) -> bool:
    """Return True if a picture is almost empty."""
    pixels = b"".join(data for kind, data in _chunks(png) if kind == b"IDAT")
    return len(set(zlib.decompress(pixels))) < 32  # Guess: text alone gives more shades.


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = PNG_HEAD_BYTES
    while at < len(png):
        size = int.from_bytes(png[at : at + 4])
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        at += size + 12  # size, kind and checksum around it


class Album:
    """Pictures for the documentation, or only a check that they are not blank."""

    def __init__(self, reader: Reader, theme: str, directory: Path) -> None:
        self._is_written = os.environ.get("SKIPRING_SCREENSHOTS") == "write"
        self._reader = reader
        self._theme = theme
        self._directory = directory

    def take(self, view: str, selector: str | None = None) -> None:
        """Take a picture of the page or of a part of it while no node moves."""
        is_kept = self._is_written and (self._theme == "light" or view in DARK_VIEWS)
        directory = IMAGES if is_kept else self._directory
        png = self._still(selector)
        (directory / f"dashboard-{view}-{self._theme}.png").write_bytes(png)
        assert not is_blank(png)
        assert not is_kept or len(png) <= PICTURE_BYTES_MAX

    def _still(self, selector: str | None) -> bytes:
        page, pictures = self._reader.page, list[bytes]()
        target = page.locator(selector) if selector else page

        def is_still() -> bool:
            self._reader.come_to_rest()
            before = self._reader.spots()
            pictures.append(target.screenshot(animations="disabled"))  # bars are drawn to their end
            return not self._reader.is_moving and self._reader.spots() == before

        self._reader.until(is_still)
        return pictures[-1]


def damage(reader: Reader) -> None:
    """Apply an adversary to the ring and wait until the damage is shown."""
    reader.page.select_option("#chaos-adversary", "A15")
    reader.remember()
    reader.page.click("[data-damage=adversary]")
    reader.until(
        lambda: any(verdict.startswith("degraded: ") for verdict in reader.verdicts()),
        reader.verdicts,
    )


def publish(reader: Reader, text: str, key: str) -> None:
    """Publish in the page and wait until the message is shown."""
    page = reader.page
    page.fill("#publish-text", text)
    page.fill("#publish-key", key)
    page.press("#publish-text", "Enter")
    expect(page.locator("#publish-text")).to_have_value("")  # it is stored
    page.locator("#publish-text").blur()
    expect(page.locator(".message", has_text=text)).to_be_visible()


def ticks(reader: Reader) -> int:
    """Return the intervals that the supervisor has counted."""
    return int(reader.page.locator("#supervisor-facts dd").first.inner_text().replace(",", ""))


def await_calm(reader: Reader) -> None:
    """Wait until healing is long over: few requests at the supervisor, and a known tree."""
    page, begun = reader.page, ticks(reader)
    reader.until(lambda: ticks(reader) >= begun + CALM_TICKS, lambda: ticks(reader))
    load = page.locator("#load-text")
    reader.until(lambda: float(load.inner_text()) <= REQUESTS_MAX, load.inner_text)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_of_a_healing_ring_is_drawn(
    browser: Browser, slow: Stage, tmp_path: Path, theme: str
) -> None:
    with whole(browser, slow, color_scheme=theme, viewport=PICTURE) as reader:
        page, album = reader.page, Album(reader, theme, tmp_path)
        damage(reader)
        wrong = page.locator(".node:not([data-mark=right])").first.get_attribute("data-node")
        album.take("healing", "#stage")
        page.locator(f".node[data-node={wrong}] .dot").click()
        expect(page.locator("#drawer .journal")).to_be_visible()
        album.take("node", "#drawer")
        page.click("#drawer-close")
        reader.expect_verdict("healthy")
        await_drawn(reader, slow)
        album.take("timeline", "#timeline")
        page.locator("#scrubber").focus()
        for _ in range(REPLAYED):
            reader.step_back()
        expect(page.locator("#replaying")).to_be_visible()
        album.take("replay", ".scene")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_of_a_calm_ring_is_drawn(
    browser: Browser, quick: Stage, tmp_path: Path, theme: str
) -> None:
    with whole(browser, quick, color_scheme=theme, viewport=PICTURE) as reader:
        page, album = reader.page, Album(reader, theme, tmp_path)
        damage(reader)
        reader.expect_verdict("healthy")
        await_calm(reader)
        for text, key in TEXTS[:-1]:
            publish(reader, text, key)
        for card in ("supervisor", "chaos"):
            album.take(card, f"#{card}")
        page.evaluate("() => scrollTo(0, 0)")
        publish(reader, *TEXTS[-1])
        await_drawn(reader, quick)
        album.take("ring")  # with pulses
        for card in ("messages", "topics"):
            album.take(card, f"#{card}")
        page.click("#as-tree")
        album.take("tree", "#stage")
        page.click("#as-ring")
        page.locator(".message").last.click()
        expect(page.locator("#journey-summary")).to_contain_text(f"reached {N} of {N}")
        album.take("journey", "#journey")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_ring_of_256_is_drawn(browser: Browser, calm: Stage, tmp_path: Path, theme: str) -> None:
    with imagining(browser, calm.dashboard.url, color_scheme=theme, viewport=PICTURE) as reader:
        tell(reader, "scene", scene_of(256))
        expect(reader.page.locator(".node")).to_have_count(256)
        Album(reader, theme, tmp_path).take("256", "#stage")
