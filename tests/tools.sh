#!/usr/bin/env bash
# tools.sh [WHO TOOL...]: name every tool that WHO needs and that is missing, with where to get it. Without words: all tools,
# which `make test-all` needs.
set -euo pipefail

declare -A from=(
    [go]="1.26 or newer: https://go.dev/dl"
    [java]="17 or newer: apt-get install openjdk-17-jdk-headless"
    [javac]="17 or newer: apt-get install openjdk-17-jdk-headless"
    [mvn]="3.8 or newer: apt-get install maven"
    [node]="18 or newer: https://nodejs.org/en/download, or apt-get install nodejs"
    [npm]="comes with node, or apt-get install npm"
    [chromium]="apt-get install chromium"
    [terraform]="1.5 or newer: https://developer.hashicorp.com/terraform/install"
    [containerd]="1.6 or newer: apt-get install containerd"
    [ctr]="comes with containerd"
    [ip]="apt-get install iproute2"
    [iptables]="apt-get install iptables"
    [runc]="1.1 or newer: apt-get install runc"
    [unshare]="apt-get install util-linux"
    [python3.12]="Google's managed Spark has it: https://www.python.org/downloads, or pyenv install 3.12"
    [promtool]="2.42 or newer: apt-get install prometheus, or https://prometheus.io/download"
    [prometheus]="2.42 or newer: apt-get install prometheus, or https://prometheus.io/download"
)
who=${1:-make test-all}
tools=("${@:2}")
[ ${#tools[@]} -gt 0 ] || tools=(chromium go java javac mvn node npm promtool prometheus python3.12 terraform)

works() { # pyenv puts a command on PATH for each Python that it has, also for those that are not switched on: these only fail
    command -v "$1" >/dev/null && { [ "$1" != python3.12 ] || python3.12 -c "" 2>/dev/null; }
}

missing=()
for tool in "${tools[@]}"; do
    works "$tool" || missing+=("$tool (${from[$tool]})")
done
if [ ${#missing[@]} -gt 0 ]; then
    echo "$who needs tools that are not on PATH:" >&2
    printf '  %s\n' "${missing[@]}" >&2
    exit 1
fi
