"""Run the stand-in: ``python -m emulators.bigquery``.

When both servers listen, stdout has one line of JSON, ``{"rest_port": .., "grpc_port": ..}``, and then the lines of
shell that lead clients to them.
"""

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from emulators.bigquery.server import HOST, serving
from emulators.running import configure_logs, stop_signal


def main() -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m emulators.bigquery", description=__doc__)
    parser.add_argument("--host", default=HOST, help="the address to listen on; %(default)s")
    parser.add_argument("--rest-port", type=int, default=9050, help="%(default)s; 0: a free one")
    parser.add_argument("--grpc-port", type=int, default=9060, help="%(default)s; 0: a free one")
    parser.add_argument("--directory", type=Path, help="where data is kept from one run to the next; else in memory")
    parser.add_argument("--log-level", default="WARNING")
    arguments = parser.parse_args()
    configure_logs(service="bigquery_stand_in", level=arguments.log_level)
    if arguments.directory is not None:
        arguments.directory.mkdir(parents=True, exist_ok=True)
    asyncio.run(_serve(arguments))
    return 0


async def _serve(arguments: argparse.Namespace) -> None:
    stop = stop_signal()
    async with serving(arguments.rest_port, arguments.grpc_port, arguments.directory, arguments.host) as ports:
        print(json.dumps(asdict(ports)))
        print(f"export BIGQUERY_EMULATOR_HOST=http://{arguments.host}:{ports.rest_port}")
        print(f"export BIGQUERY_STORAGE_EMULATOR_HOST={arguments.host}:{ports.grpc_port}", flush=True)
        await stop.wait()


if __name__ == "__main__":
    sys.exit(main())
