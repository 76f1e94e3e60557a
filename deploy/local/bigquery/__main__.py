"""Run the stand-in: ``python -m deploy.local.bigquery --rest-port P --grpc-port Q`` (0: a free port).

When both servers listen, one line of JSON on stdout says where: ``{"rest_port": .., "grpc_port": ..}``.
"""

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from deploy.local.bigquery.server import HOST, serving
from shared.runtime.logs import configure_logs
from shared.runtime.stop import Stop, stop_on_signals


def main() -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local.bigquery", description=__doc__)
    parser.add_argument("--host", default=HOST, help="the address to listen on; %(default)s")
    parser.add_argument("--rest-port", type=int, default=0)
    parser.add_argument("--grpc-port", type=int, default=0)
    parser.add_argument("--directory", type=Path, help="where data is kept from one run to the next; else in memory")
    parser.add_argument("--log-level", default="WARNING")
    arguments = parser.parse_args()
    configure_logs(service="bigquery_stand_in", level=arguments.log_level)
    with stop_on_signals() as stop:
        if arguments.directory is not None:
            arguments.directory.mkdir(parents=True, exist_ok=True)
        asyncio.run(_serve(arguments, stop))
    return 0


async def _serve(told: argparse.Namespace, stop: Stop) -> None:
    async with serving(told.rest_port, told.grpc_port, told.directory, told.host) as ports:
        print(json.dumps(asdict(ports)), flush=True)
        await stop.wait_async()


if __name__ == "__main__":
    sys.exit(main())
