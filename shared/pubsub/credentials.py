"""What Google's credentials raise, as the errors that say what to do next; for every client of Google Cloud."""

from typing import Final

from google.auth import exceptions

from shared.contracts.errors import MisconfiguredError, TransientError

_FILE: Final = "GOOGLE_APPLICATION_CREDENTIALS"
_NONE: Final = "Your default credentials were not found"
"""How the library's text starts where no file is named; any other text says what is wrong with a file, and which."""


def unusable_credentials(
    error: exceptions.DefaultCredentialsError, emulator: str = "the variable of an emulator"
) -> Exception:
    """Return the error for credentials that are missing or cannot be read; ``emulator``: what makes them needless."""
    get = "run `gcloud auth application-default login`, give the workload a service account, or set"
    text = str(error)
    if text.startswith(_NONE):
        return MisconfiguredError(
            "no-credentials", f"no Google credentials found: {get} {_FILE} to a key file, or {emulator}"
        )
    return MisconfiguredError(
        "credentials-unusable",
        f"the Google credentials cannot be used: {text.rstrip('.')}. Correct the file that {_FILE} names; or unset "
        f"that and {get} {emulator}",
    )


def credentials_error(what: str, error: exceptions.GoogleAuthError) -> Exception:
    """Return TransientError where a later call may get a token; else MisconfiguredError with the fix.

    On GCE, GKE and Cloud Run tokens come from the metadata server. Where that does not answer, `google.auth` raises a
    RefreshError that is caused by a TransportError.
    """
    if isinstance(error, exceptions.DefaultCredentialsError):
        return unusable_credentials(error)
    transport = exceptions.TransportError, exceptions.TimeoutError
    if isinstance(error, transport) or isinstance(error.__cause__, transport) or error.retryable:
        return TransientError(f"{what}: no access token now: {error}")
    return MisconfiguredError(
        "no-access-token",
        f"{what}: {error}; give the process credentials (gcloud auth application-default login, or a service account)",
    )
