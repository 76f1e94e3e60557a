"""Pages from templates: everything in them is escaped, and the policy lets the browser run nothing but our own file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jinja2
import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from services.dead_letter.web.callers import asks_this_machine
from services.dead_letter.web.console import formats
from services.dead_letter.web.console.visitors import FORM_FIELD, FORM_KEY, Visitor
from shared.contracts.timestamps import format_timestamp
from shared.runtime.clock import Clock

_HERE: Final = Path(__file__).parent
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
}
_KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
ASSETS: Final[Mapping[str, tuple[str, bytes]]] = {
    file.name: (_KINDS[file.suffix], file.read_bytes()) for file in sorted((_HERE / "assets").iterdir())
}


class ConsolePages:
    """Renders the templates of the console."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            finalize=formats.visible,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "ago": lambda text: formats.ago(text, clock.now()),
            "bars": formats.bars,
            "clock_time": formats.clock_time,
            "commands": formats.commands,
            "duration": formats.duration,
            "number": formats.number,
            "rfc3339": lambda at: None if at is None else format_timestamp(at),
            "words": lambda text: str(text).replace("_", " "),
            "json": _json,
            "signed_lines": formats.signed_lines,
        }

    def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        """Return a page, and let the visitor's forms be known again."""
        visitor: Visitor = request.state.visitor
        text = self._templates.get_template(template).render(
            values,
            visitor=visitor,
            form_field=FORM_FIELD,
            path=request.url.path,
            now=format_timestamp(self._clock.now()),
        )
        answer = HTMLResponse(text.encode(errors="replace"), status, headers=dict(_HEADERS))
        set_cookie(answer, request, FORM_KEY, visitor.form_key)
        return answer


def see_other(path: str) -> Response:
    """Return the way to a page, after something was done."""
    return RedirectResponse(path, 303, headers=dict(_HEADERS))


def set_cookie(answer: Response, request: Request, name: str, value: str, lasts: int | None = None) -> None:
    """Give a cookie that no script and no other site gets, and that goes over TLS but on this machine."""
    secure = not asks_this_machine(request.headers)
    answer.set_cookie(name, value, max_age=lasts, httponly=True, samesite="strict", secure=secure)


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode(errors="replace")
