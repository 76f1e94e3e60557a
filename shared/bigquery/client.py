"""BigQuery's client, and what its calls raise as the errors that say what to do next.

Source: BigQuery, "Troubleshoot quota and limit errors" (what is beyond a limit is answered as what is forbidden is,
403, and distinguished by its reason).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import requests
from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.auth import exceptions as auth_exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.credentials import credentials_error, unusable_credentials

_LIMITS: Final = frozenset({"rateLimitExceeded", "quotaExceeded", "jobRateLimitExceeded"})
"""The reasons by which the REST API says that a call may succeed later."""
_NO_ADDRESS: Final = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
)


def open_client(project: str, emulator_host: str | None) -> bigquery.Client:
    """Return the official client, of the real service or of what listens at ``host:port``."""
    if emulator_host:
        endpoint = emulator_host if "://" in emulator_host else f"http://{emulator_host}"
        anonymous: Any = AnonymousCredentials  # untyped
        options = ClientOptions(api_endpoint=endpoint)
        return bigquery.Client(project=project, credentials=anonymous(), client_options=options)
    try:
        return bigquery.Client(project=project)
    except auth_exceptions.DefaultCredentialsError as error:
        raise unusable_credentials(error, "BIGQUERY_EMULATOR_HOST") from error


def beyond_limits(error: exceptions.GoogleAPICallError) -> bool:
    """Return whether a call was refused for a limit or a quota of BigQuery's: not what it asks for, but when."""
    return any(isinstance(each, Mapping) and each.get("reason") in _LIMITS for each in error.errors)


@contextmanager
def bigquery_errors(what: str, refused: Callable[[str, exceptions.GoogleAPICallError], Exception]) -> Iterator[None]:
    """Translate what the BigQuery client raises; ``what`` says what was being done.

    ``refused`` makes the error of a refusal from its text and from what was raised.
    """
    try:
        yield
    except auth_exceptions.GoogleAuthError as error:  # first: some of them are an OSError, too
        raise credentials_error(what, error) from error
    except _NO_ADDRESS as error:
        raise MisconfiguredError(
            "bigquery-emulator-address", f"{what}: {_words(error)}; BIGQUERY_EMULATOR_HOST is host:port"
        ) from error
    except (
        exceptions.ServerError,
        exceptions.TooManyRequests,
        exceptions.RetryError,
        OSError,  # of `requests` and of the sockets below: a connection that ends at any place, or a timeout
    ) as error:
        raise TransientError(f"{what}: {_words(error)}") from error
    except exceptions.Unauthorized as error:
        raise MisconfiguredError(
            "bigquery-unauthorized",
            f"{what}: {_words(error)}; give the process credentials (gcloud auth application-default login)",
        ) from error
    except exceptions.GoogleAPICallError as error:
        text = f"{what}: {_words(error)}"
        raise (TransientError(text) if beyond_limits(error) else refused(text, error)) from error


def _words(error: Exception) -> str:
    return str(getattr(error, "message", "")) or str(error) or type(error).__name__
