"""Credentials that cannot be used: the error names the file, or every way to give some."""

from pathlib import Path

import google.auth._default
import pytest
from google.auth.exceptions import DefaultCredentialsError

from shared.contracts.errors import MisconfiguredError
from shared.pubsub.channels import open_channel
from shared.pubsub.credentials import unusable_credentials

FILE = "GOOGLE_APPLICATION_CREDENTIALS"


@pytest.mark.parametrize("content", [None, "not json", '{"type": "none of them"}', '{"type": "service_account"}'])
def test_unusable_credentials_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None) -> None:
    file = tmp_path / "key.json"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv(FILE, str(file))

    with pytest.raises(MisconfiguredError) as refused:
        open_channel(None)
    assert str(file) in str(refused.value)
    assert f"Correct the file that {FILE} names" in str(refused.value)


def test_without_any_every_way_to_give_some_is_named() -> None:
    error = DefaultCredentialsError(google.auth._default._CLOUD_SDK_MISSING_CREDENTIALS)  # type: ignore[no-untyped-call]

    message = str(unusable_credentials(error, "SPANNER_EMULATOR_HOST"))
    for way in ("gcloud auth application-default login", "service account", FILE, "SPANNER_EMULATOR_HOST"):
        assert way in message
