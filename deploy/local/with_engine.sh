#!/usr/bin/env bash
# Run a command where a container engine answers: the one that runs already; or one that a script brings up for as long
# as the command takes. CONTAINER_ENGINE names that script, which knows `up DIR`, `env DIR` and `down DIR`; in
# CONTAINER_ENGINE_STATE, a directory, it may leave what makes it faster the next time.
# Exit code 69: there is no engine, and none could be had.
set -euo pipefail
unavailable=69
script=${CONTAINER_ENGINE:-$(dirname "$0")/../../../shared/tools/container-engine.sh}

if timeout 20 docker version >/dev/null 2>&1; then
    exec "$@"
fi
if [ ! -f "$script" ]; then
    echo "no container engine answers \`docker\`. To get one: https://docs.docker.com/engine/install, or Debian's" >&2
    echo "docker.io and docker-compose; or name in CONTAINER_ENGINE a script that brings one up" >&2
    exit $unavailable
fi
state=${CONTAINER_ENGINE_STATE:-$(mktemp -d)}
down() {
    bash "$script" down "$state" || true
    [ -n "${CONTAINER_ENGINE_STATE:-}" ] || rm -rf "$state"
}
trap down EXIT
echo "bringing up a container engine: $script"
if ! timeout 900 bash "$script" up "$state"; then
    echo "no container engine could be brought up: $script failed" >&2
    exit $unavailable
fi
eval "$(bash "$script" env "$state")"
"$@"
