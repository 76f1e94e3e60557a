"""Google's Identity-Aware Proxy: its signed header, verified with its public keys.

Source: Google Cloud, "Securing your app with signed headers": ES256, issuer, audience, times, and a published key that
the token's header names.
"""

import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from google.auth import exceptions, jwt
from google.auth.transport import requests

from shared.contracts.errors import MisconfiguredError, TransientError

KEYS_URL: Final = "https://www.gstatic.com/iap/verify/public_key"
_ISSUER: Final = "https://cloud.google.com/iap"
_SKEW: Final = 30  # seconds between the proxy's clock and ours
_LONGEST: Final = 16_384  # characters of a header
_TIMEOUT: Final = 10  # seconds
_jwt: Final[Any] = jwt

Keys = Mapping[str, str]
"""Public keys in PEM, by their ids."""
_keys: Final = msgspec.json.Decoder(dict[str, str])


class IdentityAwareProxy:
    """The IdentityProxy of one audience: /projects/NUMBER/global/backendServices/ID, or /projects/NUMBER/apps/ID."""

    def __init__(self, audience: str, key: Callable[[str], str | None]) -> None:
        self._audience = audience
        self._key = key

    def who(self, assertion: str) -> str:
        """Return the e-mail address that an assertion names; as `IdentityProxy.who`."""
        if len(assertion) > _LONGEST:
            raise ValueError("too long")
        try:
            header: Any = _jwt.decode_header(assertion)
            if not isinstance(header, Mapping) or header.get("alg") != "ES256":
                raise ValueError("not signed with ES256")
            name = str(header.get("kid", ""))
            key = self._key(name)
            if key is None:
                raise ValueError("signed with a key that the proxy does not publish")
            claims: Any = _jwt.decode(
                assertion, certs={name: key}, audience=self._audience, clock_skew_in_seconds=_SKEW
            )
        except (exceptions.GoogleAuthError, AttributeError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(f"it cannot be verified ({_why(error)}): IAP_AUDIENCE is {self._audience}") from None
        if claims.get("iss") != _ISSUER:
            raise ValueError("it is not of the identity-aware proxy")
        who = claims.get("email") or claims.get("sub")
        if not isinstance(who, str) or not who.isprintable():
            raise ValueError("it names no caller")
        return who


def keys_of_file(file: Path) -> Callable[[str], str | None]:
    """Return the public keys in a file, as the proxy publishes them: a JSON object of key ids and PEM texts."""
    try:
        return _keys.decode(file.read_bytes()).get
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MisconfiguredError(
            "iap-keys-unreadable",
            f"IAP_KEYS_FILE={file} cannot be read ({error}): it is what {KEYS_URL} answers with",
        ) from error


class PublishedKeys:
    """The keys as they are published: fetched when an unknown one is asked for, at most once in a while."""

    def __init__(self, url: str = KEYS_URL, again: timedelta = timedelta(minutes=1)) -> None:
        self._url = url
        self._again = again.total_seconds()
        self._lock = threading.Lock()
        self._keys: Keys = {}
        self._fetched_at: float | None = None

    def __call__(self, name: str) -> str | None:
        """Return the key that is so named; TransientError where none could ever be fetched."""
        with self._lock:
            if name not in self._keys and self._is_due():
                self._fetch()
            if not self._keys:
                raise TransientError(f"the identity-aware proxy's public keys cannot be had from {self._url}")
            return self._keys.get(name)

    def _is_due(self) -> bool:
        return self._fetched_at is None or time.monotonic() - self._fetched_at >= self._again

    def _fetch(self) -> None:
        self._fetched_at = time.monotonic()
        try:
            answer = requests.Request()(self._url, timeout=_TIMEOUT)
            if answer.status != 200:
                raise ValueError(f"status {answer.status}")
            self._keys = _keys.decode(answer.data)
        except (exceptions.TransportError, msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            structlog.get_logger().warning("proxy_keys_not_fetched", url=self._url, error=type(error).__name__)


def _why(error: Exception) -> str:
    """Return what is wrong in a few words, and nothing of what the token holds."""
    text = str(error)
    known = ("expired", "too early", "wrong audience", "signature", "ES256", "does not publish")
    return next((word for word in known if word in text), type(error).__name__)
