"""The identity-aware proxy's header: verified with keys of the test's own, as the published ones would be."""

import base64
import json
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.auth import crypt, jwt

from services.dead_letter.adapters.identity_proxy import IdentityAwareProxy, PublishedKeys, keys_of_file
from shared.contracts.errors import MisconfiguredError, TransientError
from tests.fakes.http_answers import answering

AUDIENCE = "/projects/1/global/backendServices/2"


class Key:
    """A pair of keys as the proxy has them."""

    def __init__(self, name: str) -> None:
        private = ec.generate_private_key(ec.SECP256R1())
        self.name = name
        self.public = (
            private.public_key()
            .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
            .decode()
        )
        self._signer: Any = crypt.ES256Signer(private, key_id=name)

    def signed(self, **claims: Any) -> str:
        """Return an assertion that is good but for what is given."""
        now = int(time.time())
        payload = {
            "iss": "https://cloud.google.com/iap",
            "aud": AUDIENCE,
            "iat": now - 10,
            "exp": now + 500,
            "sub": "accounts.google.com:7",
            "email": "ada@example.com",
        } | claims
        given = {name: value for name, value in payload.items() if value is not None}
        assertion: bytes = jwt.encode(self._signer, given)  # type: ignore[no-untyped-call]
        return assertion.decode()


OURS, THEIRS = Key("one"), Key("one")


@pytest.fixture
def proxy() -> IdentityAwareProxy:
    return IdentityAwareProxy(AUDIENCE, {"one": OURS.public}.get)


def test_a_good_assertion_names_a_person(proxy: IdentityAwareProxy) -> None:
    assert proxy.who(OURS.signed()) == "ada@example.com"
    assert proxy.who(OURS.signed(email=None)) == "accounts.google.com:7"


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"exp": int(time.time()) - 100}, "expired"),
        ({"iat": int(time.time()) + 10_000}, "too early"),
        ({"aud": "/projects/1/global/backendServices/3"}, "wrong audience"),
        ({"aud": None}, "wrong audience"),
        ({"aud": [AUDIENCE]}, "wrong audience"),
        ({"iss": "https://accounts.google.com"}, "not of the identity-aware proxy"),
        ({"iss": None}, "not of the identity-aware proxy"),
        ({"email": None, "sub": None}, "names no caller"),
        ({"email": "ada\n"}, "names no caller"),
        ({"email": ["ada"]}, "names no caller"),
        ({"exp": None}, "MalformedError"),
        ({"exp": "soon"}, "TypeError"),
    ],
)
def test_one_that_is_not_good_is_refused(proxy: IdentityAwareProxy, claims: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        proxy.who(OURS.signed(**claims))


def _part(document: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


def _with_head(head: object) -> str:
    """Return a good assertion under another head, whose signature is therefore none."""
    return ".".join([_part(head), *OURS.signed().split(".")[1:]])


@pytest.mark.parametrize(
    ("assertion", "message"),
    [
        (THEIRS.signed(), "signature"),
        (Key("two").signed(), "does not publish"),
        (OURS.signed()[:-8] + "AAAAAAAA", "cannot be verified"),
        (_with_head({"alg": "none", "kid": "one"}), "ES256"),
        (_with_head({"alg": "HS256", "kid": "one"}), "ES256"),
        (_with_head({"alg": "RS256", "kid": "one"}), "ES256"),
        (_with_head({"alg": "ES256"}), "does not publish"),
        (_with_head({"alg": "ES256", "kid": ["one"]}), "does not publish"),
        (_with_head(["ES256"]), "cannot be verified"),
        ("", "cannot be verified"),
        ("a.b.c", "cannot be verified"),
        ("x" * 20_000, "too long"),
    ],
)
def test_one_that_the_proxy_has_not_signed_is_refused(proxy: IdentityAwareProxy, assertion: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        proxy.who(assertion)
    assert "ada" not in str(refused.value)


def test_keys_come_from_a_file_as_the_proxy_publishes_them(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"one": OURS.public}))
    assert IdentityAwareProxy(AUDIENCE, keys_of_file(file)).who(OURS.signed()) == "ada@example.com"

    file.write_text("[]")
    for bad in (file, tmp_path / "none.json"):
        with pytest.raises(MisconfiguredError, match="IAP_KEYS_FILE="):
            keys_of_file(bad)


class Published:
    """A place that keys are published at, on this machine."""

    def __init__(self) -> None:
        self.keys = {"one": OURS.public}
        self.status = 200
        self.asked = 0
        self.url = ""

    def answer(self, _path: str) -> tuple[int, bytes]:
        self.asked += 1
        return self.status, json.dumps(self.keys).encode()


@pytest.fixture
def published() -> Iterator[Published]:
    place = Published()
    with answering(place.answer) as address:
        place.url = f"http://{address}/keys"
        yield place


def test_keys_are_fetched_once_and_again_when_a_new_one_is_used(published: Published) -> None:
    proxy = IdentityAwareProxy(AUDIENCE, PublishedKeys(published.url, again=timedelta(0)))
    assert [proxy.who(OURS.signed()) for _ in range(3)] == ["ada@example.com"] * 3
    assert published.asked == 1

    newer = Key("newer")
    published.keys["newer"] = newer.public
    assert proxy.who(newer.signed()) == "ada@example.com"
    assert published.asked == 2


def test_unknown_keys_make_no_burst_of_requests_and_known_ones_outlive_an_outage(published: Published) -> None:
    proxy = IdentityAwareProxy(AUDIENCE, PublishedKeys(published.url))
    assert proxy.who(OURS.signed()) == "ada@example.com"
    for _ in range(5):
        with pytest.raises(ValueError, match="does not publish"):
            proxy.who(Key("two").signed())
    assert published.asked == 1

    reloading = IdentityAwareProxy(AUDIENCE, PublishedKeys(published.url, again=timedelta(0)))
    assert reloading.who(OURS.signed()) == "ada@example.com"
    published.status = 500
    with pytest.raises(ValueError, match="does not publish"):
        reloading.who(Key("two").signed())
    assert reloading.who(OURS.signed()) == "ada@example.com"


def test_while_no_key_can_be_had_no_assertion_is_called_wrong(published: Published) -> None:
    published.status = 503
    proxy = IdentityAwareProxy(AUDIENCE, PublishedKeys(published.url, again=timedelta(0)))
    with pytest.raises(TransientError, match="public keys cannot be had"):
        proxy.who(OURS.signed())
    published.status = 200
    assert proxy.who(OURS.signed()) == "ada@example.com"
