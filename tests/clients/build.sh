#!/usr/bin/env bash
# Builds the programs of tests/clients into build/clients: the locked versions, by each language's own client.
set -euo pipefail
cd "$(dirname "$0")/../.."

missing=()
command -v go >/dev/null || missing+=("go (1.26 or newer): https://go.dev/dl")
command -v java >/dev/null || missing+=("java (17 or newer): apt-get install openjdk-17-jdk-headless")
command -v javac >/dev/null || missing+=("javac (17 or newer): apt-get install openjdk-17-jdk-headless")
command -v mvn >/dev/null || missing+=("mvn (3.8 or newer): apt-get install maven")
command -v node >/dev/null || missing+=("node (18 or newer): https://nodejs.org/en/download, or apt-get install nodejs")
command -v npm >/dev/null || missing+=("npm: comes with node, or apt-get install npm")
if [ ${#missing[@]} -gt 0 ]; then
    echo "make clients needs tools that are not on PATH:" >&2
    printf '  %s\n' "${missing[@]}" >&2
    exit 1
fi

built=$PWD/build/clients

build_node() { # FROM TO
    mkdir -p "$2"
    cp "$1"/*.mjs "$1/package.json" "$1/package-lock.json" "$1/.npmrc" "$2"
    if ! cmp --silent "$2/package-lock.json" "$2/installed"; then # an install takes a while
        (cd "$2" && npm ci --ignore-scripts --loglevel=error && cp package-lock.json installed)
    fi
}

build_java() { # FROM
    mvn --quiet --batch-mode --file "$1" compile dependency:copy-dependencies
}

echo "building the Go programs"
(cd tests/clients/go && go build -o "$built/go" .)
(cd samples/subscribers/go && go build -o "$built/subscriber/go" .)
echo "building the Java programs"
build_java tests/clients/java
mkdir -p "$built/subscriber/java"
cp -r samples/subscribers/java/pom.xml samples/subscribers/java/src "$built/subscriber/java"
build_java "$built/subscriber/java"
echo "installing the Node programs"
build_node tests/clients/node "$built/node"
build_node samples/subscribers/node "$built/subscriber/node"
