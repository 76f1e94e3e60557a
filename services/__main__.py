"""`millrace`: one launcher for the services and for every command beside them.

It imports no service: it starts `python -m services.NAME` with the words that follow and ends with its exit code. A
service whose packages are not installed (an image has those of one service) is then reported by Python itself.
"""

import difflib
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FAILED: Final = 1
MISCONFIGURED: Final = 2


@dataclass(frozen=True, slots=True)
class Service:
    """A service as the launcher knows it.

    ``variables``: settings that only this service requires: where all are set, the service is configured here.
    ``status``: the command that prints how the service is.
    """

    module: str
    does: str
    variables: Sequence[str]
    status: str = "status"


SERVICES: Final[Mapping[str, Service]] = {
    "spanner-reader": Service("services.spanner_reader", "publishes a Spanner change stream", ["CHANGE_STREAM"]),
    "bigtable-reader": Service("services.bigtable_reader", "publishes a Bigtable table's changes", ["BIGTABLE_TABLE"]),
    "consumer": Service(  # readers may have a SUBSCRIPTION, and dead_letter a BIGQUERY_DATASET
        "services.cdc_consumer", "applies the topic's changes to BigQuery", ["SUBSCRIPTION", "BIGQUERY_DATASET"]
    ),
    "dead-letters": Service(
        "services.dead_letter", "stores and replays dead letters", ["DEAD_LETTER_SUBSCRIPTION"], status="stats"
    ),
}
CONSUMER_COMMANDS: Final = ("setup", "delete-missing-rows", "reconcile")
"""Commands that one service has and that are typed without its name."""
OF_ALL: Final = ("status", "doctor")
SHELLS: Final = ("bash", "zsh", "fish")
PROJECT: Final = Path(__file__).resolve().parents[1] / "pyproject.toml"

USAGE: Final = """usage: millrace SERVICE [COMMAND ...]
       millrace status | doctor [--json]
       millrace status --watch
       millrace setup | delete-missing-rows | reconcile [...]
       millrace completion bash | zsh | fish
       millrace --version

Services:
{services}

`status` and `doctor` run for every service that the environment configures, and end with the highest exit code.
`status --watch` polls the running services of CONSOLE_SERVICES, and shows what needs attention first.
`setup`, `delete-missing-rows` and `reconcile` are the consumer's. A service's name alone starts the service itself.

Examples:
  millrace doctor                                 check everything that the configured services need
  millrace status --json                          one object, with one member for each configured service
  millrace consumer status                        how each table is
  millrace spanner-reader snapshot Orders         read all rows of a table again
  millrace reconcile Orders                       compare a mirror with its source
  millrace dead-letters list                      what could not be applied
  millrace dead-letters replay --help             what a command takes
  source <(millrace completion bash)              complete names in this shell
"""


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run what the command line names; return its exit code."""
    match arguments:
        case [] | ["-h" | "--help"] | ["status" | "doctor", "-h" | "--help"]:
            sys.stdout.write(usage())
            return 0
        case ["--version"]:
            sys.stdout.write(f"millrace {version(environ)}\n")
            return 0
        case [name, *rest] if name in SERVICES:
            return run(SERVICES[name], rest)
        case ["status", "--watch"]:
            return run(SERVICES["dead-letters"], ["watch"])
        case [("status" | "doctor") as command, *rest] if set(rest) <= {"--json"}:
            return run_all(command, environ, as_json=bool(rest))
        case [name, *rest] if name in CONSUMER_COMMANDS:
            return run(SERVICES["consumer"], [name, *rest])
        case ["completion", shell] if shell in SHELLS:
            sys.stdout.write(completion(shell, {name: commands_of(one) for name, one in SERVICES.items()}))
            return 0
        case ["completion", *_]:
            return refuse(f"completion takes one of {', '.join(SHELLS)}")
        case [("status" | "doctor") as command, *_]:
            return refuse(f"{command} of all services takes --json only; `millrace SERVICE {command}` may take more")
        case _:
            name = arguments[0]
            known = [*SERVICES, *OF_ALL, *CONSUMER_COMMANDS, "completion"]
            near = difflib.get_close_matches(name, known, n=1)
            meant = f": did you mean {near[0]}?" if near else f": there are {', '.join(known)}"
            return refuse(f"unknown service or command {name}{meant}")


def usage() -> str:
    """Return what `--help` prints."""
    width = max(map(len, SERVICES))
    return USAGE.format(services="\n".join(f"  {name:<{width}}  {one.does}" for name, one in SERVICES.items()))


def version(environ: Mapping[str, str]) -> str:
    """Return which version this is: MILLRACE_VERSION, that of the image, or, in a checkout, that of its project."""
    if named := environ.get("MILLRACE_VERSION", "").strip():
        return named
    try:
        return importlib.metadata.version("millrace")  # deploy/Dockerfile gives it to an image, which has no project
    except importlib.metadata.PackageNotFoundError:
        found: str = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["version"]
        return found


def run(service: Service, arguments: Sequence[str]) -> int:
    """Become a service or a command of it: signals and standard streams are its own."""
    sys.stdout.flush()
    os.execv(sys.executable, command_line(service, arguments))  # noqa: S606  our own interpreter and module


def command_line(service: Service, arguments: Sequence[str]) -> list[str]:
    """Return what starts a service."""
    return [sys.executable, "-m", service.module, *arguments]


def run_all(command: str, environ: Mapping[str, str], *, as_json: bool) -> int:
    """Run a command of every service that the environment configures; return the highest exit code."""
    configured = {
        name: one for name, one in SERVICES.items() if all(environ.get(each, "").strip() for each in one.variables)
    }
    if not configured:
        variables = ", ".join(f"{' and '.join(one.variables)} ({name})" for name, one in SERVICES.items())
        where = "under `make up`, .run/up/NAME.env has the settings of a service"
        return refuse(f"no service is configured in this environment: set one of {variables}; {where}")
    codes, documents = [], {}
    for name, one in configured.items():
        words = [one.status if command == "status" else command, *(["--json"] if as_json else [])]
        if not as_json:
            sys.stdout.write(f"== {name}\n")
            sys.stdout.flush()
        ended = subprocess.run(command_line(one, words), stdout=subprocess.PIPE if as_json else None, check=False)
        if ended.returncode < 0:
            sys.stderr.write(f"error: {name} was ended by {signal.Signals(-ended.returncode).name}\n")
        codes.append(FAILED if ended.returncode < 0 else ended.returncode)
        if as_json:
            documents[name] = json_of(ended.stdout)
    if as_json:
        sys.stdout.write(json.dumps(documents) + "\n")
    return max(codes)


def json_of(printed: bytes) -> object:
    """Return the document that a command has printed; None where it has failed before it printed one."""
    try:
        return json.loads(printed)
    except ValueError:
        return None


def commands_of(service: Service) -> Sequence[str]:
    """Return the commands of a service, read from its `--help`; none where its packages are not installed."""
    asked = subprocess.run(
        command_line(service, ["--help"]),
        env={**os.environ, "TERM": "dumb", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return sorted(set(re.findall(r"^[ │|]{1,5}([a-z][a-z-]+)  +\S", asked.stdout, re.MULTILINE)))


def completion(shell: str, commands: Mapping[str, Sequence[str]]) -> str:
    """Return a script that makes a shell complete services and their commands."""
    first = " ".join([*SERVICES, *OF_ALL, *CONSUMER_COMMANDS, "completion"])
    rows = {**{name: " ".join(words) for name, words in commands.items()}, "completion": " ".join(SHELLS)}
    if shell == "fish":
        lines = ["complete -c millrace -f", f"complete -c millrace -n __fish_use_subcommand -a '{first}'"]
        lines += [f"complete -c millrace -n '__fish_seen_subcommand_from {at}' -a '{to}'" for at, to in rows.items()]
        return "\n".join(lines) + "\n"
    cases = "\n".join(f"        {at}) words='{to}' ;;" for at, to in rows.items())
    script = f"""_millrace() {{
    local words=''
    if [ "$COMP_CWORD" -eq 1 ]; then words='{first}'; else case "${{COMP_WORDS[1]}}" in
{cases}
    esac; fi
    [ "$COMP_CWORD" -le 2 ] && COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _millrace millrace
"""
    return script if shell == "bash" else f"autoload -U +X bashcompinit && bashcompinit\n{script}"


def refuse(why: str) -> int:
    """Say what is wrong with the command line; return the exit code."""
    sys.stderr.write(f"error: {why}\n`millrace --help` lists everything\n")
    return MISCONFIGURED


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:], os.environ)
        sys.stdout.flush()
    except BrokenPipeError:  # what reads it, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        code = FAILED
    except KeyboardInterrupt:  # the command that runs has got it, too
        sys.stderr.write("error: stopped before the end\n")
        code = FAILED
    sys.exit(code)
