#!/usr/bin/env bash
# isolated.sh COMMAND...: run a command as root with processes, mounts and a network of its own, in which a node of Kubernetes
# may do what it does to a machine. What the command leaves ends with it; no address is reached from outside or reaches out.
set -euo pipefail
if [ "${1:-}" != --inside ]; then
    if [ "$(id --user)" != 0 ]; then
        echo "isolated.sh needs root: a node of Kubernetes mounts volumes, and makes networks and control groups" >&2
        exit 1
    fi
    TMPDIR=$(mktemp --directory)
    export TMPDIR
    cleanup() {
        find /sys/fs/cgroup -depth -type d -path '*/millrace-cluster*' -exec rmdir {} +
        rm --recursive --force --one-file-system "$TMPDIR"
    }
    trap cleanup EXIT
    unshare --mount --net --pid --uts --ipc --fork --kill-child --mount-proc "$0" --inside "$@"
    exit
fi
shift
mount --make-rshared /
mount -t tmpfs tmpfs /run
mkdir /run/changed /run/work
mount -t overlay overlay -o lowerdir=/var,upperdir=/run/changed,workdir=/run/work /var
ip link set lo up
# the kubelet would set these for the whole machine
for tunable in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=/run/${tunable//\//-}
    echo "${tunable#*=}" >"$file"
    mount --bind "$file" "/proc/sys/${tunable%=*}"
done
"$@" # not in place of this shell, which is the first process and waits for what loses its parent
