"""Who reads the console: by the API's own means, or by a cookie that stands for the token of a sign-in.

No session is kept: a cookie names who it is for and until when, sealed with the digest of the token. Without that token
it is worth nothing, on every replica at once. The API takes no cookie.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from services.dead_letter.web.callers import Callers, Token, asks_this_machine
from services.dead_letter.web.refusals import RefusedError
from shared.runtime.clock import Clock

SIGNED_IN: Final = "millrace_signed_in"
FORM_KEY: Final = "millrace_form"
FORM_FIELD: Final = "form"
LASTS: Final = 12 * 3600
"""Seconds after which to sign in again."""
_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Who asks for a page, None where that is open to anybody, and the key of the forms that it gets."""

    who: str | None
    form_key: str
    by_cookie: bool = False
    """Can sign out."""

    @property
    def form_value(self) -> str:
        """Return what a form of this visitor brings back."""
        return hashlib.sha256(f"form {self.who} {self.form_key}".encode(errors="surrogatepass")).hexdigest()


class Visitors:
    """Tells visitors, and lets them in."""

    def __init__(self, callers: Callers, clock: Clock) -> None:
        self._callers = callers
        self._clock = clock

    def visitor(self, headers: Mapping[str, str], cookies: Mapping[str, str]) -> Visitor:
        """Return who asks; RefusedError where the headers say what is not good."""
        form_key = cookies.get(FORM_KEY) or secrets.token_urlsafe(24)
        who = self._callers.who(headers)
        if who is not None:
            return Visitor(who=who, form_key=form_key)
        who = self._signed_in(cookies.get(SIGNED_IN, ""))
        return Visitor(who=who, form_key=form_key, by_cookie=who is not None)

    def let_in(self, visitor: Visitor, headers: Mapping[str, str], *, only_reads: bool) -> None:
        """Refuse a visitor who may not; RefusedError with what it takes."""
        open_reads = only_reads and self._callers.open_reads and asks_this_machine(headers)
        if visitor.who is None and not open_reads:
            refused = self._callers.refused()
            if self._callers.tokens():
                raise RefusedError(401, "sign in with a token: a person who changes or sees values is named")
            raise refused

    def may_sign_in(self) -> bool:
        """Return whether there are tokens to sign in with."""
        return bool(self._callers.tokens())

    def sign_in(self, given: str) -> str:
        """Return the cookie for a token; RefusedError where it is none."""
        token = self._callers.token(given.strip())
        if token is None:
            raise RefusedError(401, "this token is not one of API_TOKEN or API_TOKEN_FILE")
        until = self._clock.now() // _SECOND + LASTS
        name = _written(token)
        return f"{name}.{until}.{_seal(token, name, until)}"

    def _signed_in(self, cookie: str) -> str | None:
        name, _dot, rest = cookie.partition(".")
        text, _dot, seal = rest.partition(".")
        if not (text.isascii() and text.isdecimal() and len(text) < 16) or not seal.isascii():
            return None
        until = int(text)
        if until <= self._clock.now() // _SECOND:
            return None
        for token in self._callers.tokens():
            # the name too: a person with a token can make its seal for any name
            if hmac.compare_digest(_seal(token, name, until), seal) and _written(token) == name:
                return token.name
        return None


def check_site(headers: Mapping[str, str]) -> None:
    """Refuse what a page from elsewhere has sent, before any of it is read: RefusedError 403."""
    site = headers.get("sec-fetch-site")
    ours = site == "same-origin" if site is not None else _is_of(headers.get("origin", ""), headers.get("host"))
    if not ours:
        raise RefusedError(403, "this form comes from another page: open the console itself, and try again")


def check_form(visitor: Visitor, fields: Mapping[str, str]) -> None:
    """Refuse a form that is not of this visit: RefusedError 403."""
    if not hmac.compare_digest(fields.get(FORM_FIELD, "").encode(), visitor.form_value.encode()):
        raise RefusedError(403, "this form is of an earlier visit: go back, reload the page, and try again")


def _is_of(origin: str, host: str | None) -> bool:
    try:
        there = urlsplit(origin).netloc
    except ValueError:  # such as http://[
        return False
    return bool(there) and there == host


def _written(token: Token) -> str:
    """Return the name of a token as a cookie holds it."""
    return base64.urlsafe_b64encode(token.name.encode()).decode()


def _seal(token: Token, name: str, until: int) -> str:
    return hmac.new(token.digest, f"console {name} {until}".encode(), hashlib.sha256).hexdigest()
