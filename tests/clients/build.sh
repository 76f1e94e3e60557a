#!/usr/bin/env bash
# Builds the programs of tests/clients into build/clients: the locked versions, by each language's own client.
set -euo pipefail
cd "$(dirname "$0")/../.."

"$BASH" tests/tools.sh "make clients" go java javac mvn node npm

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
