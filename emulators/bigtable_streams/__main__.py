"""Run the front: ``python -m emulators.bigtable_streams``, beside ``gcloud beta emulators bigtable start``.

When it listens, stdout has one line of JSON, ``{"port": ..}``, and then the line of shell that leads clients to it.
"""

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from datetime import timedelta

from emulators.bigtable_streams.server import HOST, serving
from emulators.running import configure_logs, stop_signal


def main() -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m emulators.bigtable_streams", description=__doc__)
    parser.add_argument("--host", default=HOST, help="the address to listen on; %(default)s")
    parser.add_argument("--port", type=int, default=8087, help="%(default)s; 0: a free one")
    parser.add_argument(
        "--emulator", default="127.0.0.1:8086", help="where Google's Bigtable emulator listens; %(default)s"
    )
    parser.add_argument("--garbage-seconds", type=float, help="how often garbage is collected; else on demand only")
    parser.add_argument("--log-level", default="WARNING")
    arguments = parser.parse_args()
    configure_logs(service="bigtable_change_streams", level=arguments.log_level)
    every = None if arguments.garbage_seconds is None else timedelta(seconds=arguments.garbage_seconds)
    asyncio.run(_serve(arguments.port, arguments.emulator, every, arguments.host))
    return 0


async def _serve(port: int, emulator: str, garbage_every: timedelta | None, host: str) -> None:
    stop = stop_signal()
    async with serving(port, emulator, garbage_every, host) as ports:
        print(json.dumps(asdict(ports)))
        print(f"export BIGTABLE_EMULATOR_HOST={host}:{ports.port}", flush=True)
        await stop.wait()


if __name__ == "__main__":
    sys.exit(main())
