"""The commands beside the service. They take its settings."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Final, TextIO

import structlog

from services.cdc_consumer.commands.command_line import (
    COMMAND_LINE,
    AdviseCommand,
    ConsumerStatusCommand,
    DeleteMissingRowsCommand,
    ReconcileCommand,
    SetupCommand,
    TablesCommand,
)
from services.cdc_consumer.commands.status import status
from services.cdc_consumer.settings import SetupSettings
from services.cdc_consumer.wiring.advise import advise_command
from services.cdc_consumer.wiring.delete_missing_rows import delete_missing_rows_command
from services.cdc_consumer.wiring.doctor import doctor
from services.cdc_consumer.wiring.reconcile import reconcile
from services.cdc_consumer.wiring.tables import check_tables
from shared.contracts.errors import TransientError
from shared.pubsub.channels import stoppable_channel
from shared.pubsub.names import short_name, subscription_path, topic_path
from shared.pubsub.topology import PubsubTopology, create_topology, forwarding_rights, still_to_grant
from shared.runtime.answers import print_answer
from shared.runtime.commands import DoctorCommand
from shared.runtime.logs import configure_logs
from shared.runtime.service import command_settings, complain
from shared.runtime.stop import Stop, stop_on_signals

FAILED: Final = 1


def command(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command beside the service; return its exit code."""
    parsed = COMMAND_LINE.parse(arguments)
    asks_only = isinstance(parsed, ConsumerStatusCommand | DoctorCommand)  # nothing of theirs has to be wound down
    with nullcontext(Stop()) if asks_only else stop_on_signals() as stop:
        try:
            match parsed:
                case ConsumerStatusCommand():
                    return status(parsed, environ, sys.stdout)
                case DoctorCommand(json=as_json):
                    return doctor(environ, sys.stdout, as_json=as_json)
                case DeleteMissingRowsCommand():
                    return delete_missing_rows_command(parsed, environ, sys.stdout, stop)
                case ReconcileCommand():
                    return reconcile(parsed, environ, stop, sys.stdout)
                case AdviseCommand():
                    return advise_command(parsed, environ, stop, sys.stdout)
                case TablesCommand():
                    return check_tables(parsed, environ, stop, sys.stdout)
                case SetupCommand(json=as_json):
                    settings = command_settings(SetupSettings, environ)
                    topology, emulated = set_up(settings, stop), settings.pubsub_emulator_host is not None
                    print_topology(topology, sys.stdout, emulated=emulated, as_json=as_json)
        except TransientError as error:
            complain(f"stopped before the end: {error}" if stop.requested else str(error))
            return FAILED
        except KeyboardInterrupt:
            complain("stopped before the end")
            return FAILED
    return 0


def set_up(settings: SetupSettings, stop: Stop) -> PubsubTopology:
    """Make the topics and subscriptions that are missing, and check those that are there; return all of them."""
    configure_logs(service="cdc_consumer", level=settings.log_level, log_format=settings.log_format)
    project = settings.project
    dead_letters = settings.dead_letter_subscription or short_name(settings.dead_letter_topic)
    topology = PubsubTopology(
        topic=topic_path(project, settings.topic),
        subscription=subscription_path(project, settings.subscription),
        dead_letter_topic=topic_path(project, settings.dead_letter_topic),
        dead_letter_subscription=subscription_path(project, dead_letters),
        ack_deadline=settings.ack_deadline,
        keep_messages_for=settings.keep_messages_for,
    )
    with stoppable_channel(settings.pubsub_emulator_host, stop) as channel:
        create_topology(channel, topology, stop)
    structlog.get_logger().info("topology_created", **{name: str(value) for name, value in asdict(topology).items()})
    return topology


def print_topology(topology: PubsubTopology, out: TextIO, *, emulated: bool, as_json: bool) -> None:
    """Print what is still to be granted, if anything, or as JSON the names of all there is, too."""
    rights = () if emulated else forwarding_rights(topology.subscription, topology.dead_letter_topic)
    document = {
        "topic": topology.topic,
        "subscription": topology.subscription,
        "dead_letter_topic": topology.dead_letter_topic,
        "dead_letter_subscription": topology.dead_letter_subscription,
        "still_to_grant": [right.grant for right in rights],
    }
    print_answer(document, still_to_grant(topology).splitlines() if rights else (), as_json, out)
