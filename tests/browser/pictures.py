"""Pictures of pages as small PNGs, in each of which stands what was read on the page, and the style that it had.

A picture has 256 colours, the most frequent ones of the page: a third of the bytes.
"""

import base64
import hashlib
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.browser.chromium import Browser

STYLE: Final = Path(__file__).parents[2] / "services/dead_letter/web/console/assets/console.css"
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_KEYWORD: Final = b"Description\0"
_PALETTE: Final = """(async data => {
  const bytes = Uint8Array.from(atob(data), one => one.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes], {type: "image/png"}));
  const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, image.width, image.height).data, counts = new Map();
  const color = at => pixels[at] << 16 | pixels[at + 1] << 8 | pixels[at + 2];
  for (let at = 0; at < pixels.length; at += 4) counts.set(color(at), (counts.get(color(at)) || 0) + 1);
  const palette = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 256).map(one => one[0]);
  const far = (a, b) => [16, 8, 0].reduce((sum, bits) => sum + ((a >> bits & 255) - (b >> bits & 255)) ** 2, 0);
  const nearest = new Map([...counts.keys()].map(one =>
    [one, palette.reduce((best, other, place) => far(one, other) < far(one, palette[best]) ? place : best, 0)]));
  const places = new Uint8Array(pixels.length / 4);
  for (let at = 0; at < pixels.length; at += 4) places[at / 4] = nearest.get(color(at));
  let text = "";
  for (let at = 0; at < places.length; at += 32768) text += String.fromCharCode(...places.subarray(at, at + 32768));
  return {width: image.width, height: image.height, palette, places: btoa(text)};
})(%s)"""


def description(browser: Browser, width: int, theme: str) -> str:
    """Return what makes a picture of the page that is open what it is."""
    style = hashlib.sha256(STYLE.read_bytes()).hexdigest()[:16]
    return f"{browser.text()}\n\n{width} pixels, {theme}, style {style}"


def picture(browser: Browser, height: int | None, described: str) -> bytes:
    """Return a PNG of the page that is open down to a height, or the whole of it, with its description."""
    shot = base64.b64encode(browser.screenshot(height=height)).decode()
    image = browser.run(_PALETTE % json.dumps(shot))
    width, rows, places = image["width"], image["height"], base64.b64decode(image["places"])
    lines = b"".join(b"\0" + places[at : at + width] for at in range(0, len(places), width))
    text = _KEYWORD + b"\1\0\0\0" + zlib.compress(described.encode(), 9)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, rows, 8, 3, 0, 0, 0)),
        (b"iTXt", text),
        (b"PLTE", b"".join(one.to_bytes(3) for one in image["palette"])),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def described_in(png: bytes) -> str:
    """Return the description in a picture; empty where there is none."""
    texts = [data for kind, data in _chunks(png) if kind == b"iTXt" and data.startswith(_KEYWORD)]
    return zlib.decompress(texts[0][len(_KEYWORD) + 4 :]).decode() if texts else ""


def size(png: bytes) -> tuple[int, int]:
    """Return the width and height of a picture."""
    width, height = struct.unpack(">II", dict(_chunks(png))[b"IHDR"][:8])
    return width, height


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_SIGNATURE)
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += 12 + length
