#!/usr/bin/env bash
# Make .venv from the locked requirements, with the Python that is named; name what prevents it.
set -euo pipefail
python=${1:-}
fail() {
    echo "FAILED: $1" >&2
    exit 1
}
needed="Python 3.11 or newer is needed: make install PYTHON=/path/to/python3.11"
[ -n "$python" ] && command -v "$python" >/dev/null || fail "$needed (there is no ${python:-python3})"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$needed ($("$python" --version 2>&1) is there)"
[ ! -L .venv ] || fail ".venv is a link, and to create it again would empty what it leads to: remove it"
[ -w . ] || fail "$PWD cannot be written: make creates .venv and .run here; clone into a directory that you can write"
said=$(mktemp)
trap 'rm -f "$said"' EXIT
"$python" -m venv --clear .venv >"$said" 2>&1 || {
    cat "$said" >&2
    fail "no virtual environment can be created in $PWD/.venv (on Debian: apt-get install python3-venv)"
}
count=$(grep -c '^[a-z0-9]' requirements/development.txt || true)
echo "installing $count packages into .venv: about 1.3 GB, which takes some minutes the first time"
# Python compiles a module at its first import: most are never imported.
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes \
    --requirement requirements/development.txt 2>"$said" || {
    tail -n 20 "$said" >&2
    # What pip retried is in its warnings, the cause in its errors; where it found no package, the warnings say why.
    errors=$(sed -n '/^ *ERROR/,$p' "$said")
    [[ -n $errors && $errors != *"from versions: none"* ]] || errors=$(cat "$said")
    unreachable='NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError|Name or service not known|Temporary failure'
    unreachable="$unreachable|Failed to establish a new connection|Connection refused|Network is unreachable|Max retries"
    unreachable="$unreachable|from versions: none"
    if [[ $errors == *"DO NOT MATCH THE HASHES"* ]]; then
        fail "a package from the index has another content than requirements/development.txt names: the index or a \
proxy changed it, or its download was cut short. Run \`.venv/bin/python -m pip cache purge\` and try again, or set \
PIP_INDEX_URL to another index"
    elif [[ $errors == *"No space left on device"* || $errors == *"Disk quota exceeded"* ]]; then
        fail "no space is left: .venv needs about 1.3 GB in $PWD, and pip needs room in ${TMPDIR:-/tmp}: free some, or \
set TMPDIR to a directory on another disk"
    elif [[ $errors == *SSLError* || $errors == *"confirming the ssl certificate"* ]]; then
        fail "pip does not trust the certificate of the package index: set PIP_CERT to the file of the certificate \
authority that signed it (a company's proxy has one of its own)"
    elif grep -Eq "$unreachable" <<<"$errors"; then
        fail "cannot reach the package index: set PIP_INDEX_URL to one that this machine reaches, PIP_PROXY to a \
proxy, or PIP_NO_INDEX=1 and PIP_FIND_LINKS to a directory of wheels. \
\`.venv/bin/python -m pip config list\` shows what pip uses now"
    fi
    fail "pip could not install requirements/development.txt: see above"
}
