"""Run the front: ``python -m deploy.local.bigtable_change_streams --port P --emulator host:port`` (port 0: a free one).

When it listens, one line of JSON on stdout says where: ``{"port": ..}``.
"""

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from datetime import timedelta

from deploy.local.bigtable_change_streams.server import HOST, serving
from shared.runtime.logs import configure_logs
from shared.runtime.stop import Stop, stop_on_signals


def main() -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local.bigtable_change_streams", description=__doc__)
    parser.add_argument("--host", default=HOST, help="the address to listen on; %(default)s")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--emulator", required=True, help="where the Bigtable emulator listens, as host:port")
    parser.add_argument("--garbage-seconds", type=float, help="how often garbage is collected; else on demand only")
    parser.add_argument("--log-level", default="WARNING")
    arguments = parser.parse_args()
    configure_logs(service="bigtable_change_streams", level=arguments.log_level)
    with stop_on_signals() as stop:
        every = None if arguments.garbage_seconds is None else timedelta(seconds=arguments.garbage_seconds)
        asyncio.run(_serve(arguments.port, arguments.emulator, every, arguments.host, stop))
    return 0


async def _serve(port: int, emulator: str, garbage_every: timedelta | None, host: str, stop: Stop) -> None:
    async with serving(port, emulator, garbage_every, host) as ports:
        print(json.dumps(asdict(ports)), flush=True)
        await stop.wait_async()


if __name__ == "__main__":
    sys.exit(main())
