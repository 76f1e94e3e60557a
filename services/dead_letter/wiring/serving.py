"""The HTTP API joined to the service's store, and to the topic and the mirrors that the settings name."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry

from services.dead_letter.adapters.identity_proxy import IdentityAwareProxy, PublishedKeys, keys_of_file
from services.dead_letter.adapters.status_pages import HttpStatusPages
from services.dead_letter.app.metrics import ApiMetrics
from services.dead_letter.app.service_poller import ServicePoller
from services.dead_letter.ports import DeadLetterStore, IdentityProxy
from services.dead_letter.settings import Settings, is_loopback, watched_services
from services.dead_letter.web.app import application
from services.dead_letter.web.callers import Callers, Token, read_tokens
from services.dead_letter.web.server import serving
from services.dead_letter.web.token_file import TokenFile
from services.dead_letter.web.tools import ConsoleTools, WebTools
from services.dead_letter.wiring.connections import known_launcher, replay_tools
from shared.runtime.clock import SystemClock
from shared.runtime.stop import Stop


@contextmanager
def serving_api(
    settings: Settings, store: DeadLetterStore, registry: CollectorRegistry, stop: Stop
) -> Iterator[int | None]:
    """Serve the API while the block runs, and yield its port; None where the settings name no port."""
    if settings.api_port is None:
        yield None
        return
    tools = WebTools(
        store=store,
        replay=replay_tools(settings),
        console=ConsoleTools(
            poller=ServicePoller(watched_services(settings.console_services), HttpStatusPages(), SystemClock()),
            launcher=known_launcher(settings),
        ),
        callers=Callers(
            tokens=known_tokens(settings), proxy=known_proxy(settings), open_reads=is_loopback(settings.api_host)
        ),
        clock=SystemClock(),
        stop=stop,
        metrics=ApiMetrics(registry),
    )
    with (
        tools.console.poller.polling(stop),
        tools.console.runs.running(stop),
        serving(application(tools), settings.api_host, settings.api_port, stop) as port,
    ):
        yield port


def known_tokens(settings: Settings) -> Callable[[], Sequence[Token]]:
    """Return a function that returns the callers' tokens; MisconfiguredError if they cannot be read."""
    if settings.api_token is not None:
        tokens = read_tokens(settings.api_token, "API_TOKEN")
        return lambda: tokens
    return tuple if settings.api_token_file is None else TokenFile(settings.api_token_file)


def known_proxy(settings: Settings) -> IdentityProxy | None:
    """Return the identity-aware proxy that is trusted, if one is; MisconfiguredError if its keys cannot be read."""
    if settings.iap_audience is None:
        return None
    keys = PublishedKeys() if settings.iap_keys_file is None else keys_of_file(settings.iap_keys_file)
    return IdentityAwareProxy(settings.iap_audience, keys)
