"""Who asks, and what they may: a token or the identity-aware proxy's word for all that writes or shows values.

No token is ever compared but in constant time, and none is in a URL, an answer or a log.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from services.dead_letter.ports import IdentityProxy
from services.dead_letter.web.refusals import RefusedError
from shared.contracts.errors import MisconfiguredError

ASSERTION: Final = "x-goog-iap-jwt-assertion"
UNNAMED: Final = "api-token"
"""Who is in the trail where a token has no name."""
_SHORTEST: Final = 16
_OURS: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_NO_CALLER_MAY: Final = (
    "no caller may do this here: set API_TOKEN or API_TOKEN_FILE (then send 'Authorization: Bearer TOKEN'), or behind "
    "an identity-aware proxy IAP_AUDIENCE, and restart the service"
)
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="dead letters"'}


@dataclass(frozen=True, slots=True)
class Token:
    """A token by its digest, so that it is shown by nothing, and who it stands for."""

    name: str
    digest: bytes = field(repr=False)


def read_tokens(text: str, where: str) -> Sequence[Token]:
    """Return the tokens in a text: one alone, or a line ``NAME TOKEN`` each; MisconfiguredError with the fix."""
    tokens = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        if not parts or line.startswith("#"):
            continue
        name, token = (UNNAMED, parts[0]) if len(parts) == 1 else (parts[0], parts[-1])
        if len(parts) > 2 or not token.isascii() or len(token) < _SHORTEST:
            raise MisconfiguredError(
                "token-line-malformed",
                f"{where}, line {number}: write TOKEN or NAME TOKEN, a token of {_SHORTEST} ASCII characters or more; "
                "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one",
            )
        tokens.append(Token(name, _digest(token)))
    if not tokens:
        raise MisconfiguredError("no-token-given", f"{where} holds no token")
    return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Callers:
    """Who may do what. Reads without values are open to this machine where ``open_reads``."""

    tokens: Callable[[], Sequence[Token]] = tuple
    """The tokens as they are now: they may change from one request to the next."""
    proxy: IdentityProxy | None = None
    open_reads: bool = False

    def who(self, headers: Mapping[str, str]) -> str | None:
        """Return who asks; None where they do not say. RefusedError where what they say is not good.

        TransientError where that is not known just now.
        """
        assertion = headers.get(ASSERTION)
        if self.proxy is not None and assertion is not None:
            try:
                return self.proxy.who(assertion)
            except ValueError as error:
                raise RefusedError(401, f"{ASSERTION} is not good: {error}", headers=_CHALLENGE) from None
        authorization = headers.get("authorization")
        if authorization is None or not self.tokens():
            return None
        scheme, _space, given = authorization.partition(" ")
        token = self.token(given.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            raise RefusedError(
                401,
                "this token is not one of API_TOKEN or API_TOKEN_FILE; send 'Authorization: Bearer TOKEN'",
                headers=_CHALLENGE,
            )
        return token.name

    def token(self, given: str) -> Token | None:
        """Return the token that is so written; None where there is none."""
        digest = _digest(given)
        return next((token for token in self.tokens() if hmac.compare_digest(token.digest, digest)), None)

    def allowed(self, headers: Mapping[str, str], *, only_reads: bool) -> str | None:
        """Return who asks, if they may; RefusedError with what it takes."""
        who = self.who(headers)
        if who is not None or (only_reads and self.open_reads and asks_this_machine(headers)):
            return who
        raise self.refused()

    def refused(self) -> RefusedError:
        """Return the refusal of a caller without credentials."""
        tokens = self.tokens()
        if not tokens and self.proxy is None:
            return RefusedError(403, _NO_CALLER_MAY)
        ways = ["'Authorization: Bearer TOKEN'"] if tokens else []
        ways += [f"the header {ASSERTION}, through the identity-aware proxy"] if self.proxy is not None else []
        return RefusedError(
            401, f"send {' or '.join(ways)}: a caller that writes or sees values is named", headers=_CHALLENGE
        )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def asks_this_machine(headers: Mapping[str, str]) -> bool:
    """Return whether a request names this machine: a page from elsewhere, by a name that leads here, does not."""
    host = headers.get("host", "")
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    return name.strip("[]").lower() in _OURS
