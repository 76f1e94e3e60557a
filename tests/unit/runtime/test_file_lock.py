"""A lock on a file: what is said where it cannot be had."""

import errno
import fcntl
import os
import socket
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from services.cdc_consumer.adapters.spark.checkpoint import owned_checkpoint
from services.dead_letter.adapters.store.lock import collector_lock
from shared.contracts.errors import MisconfiguredError

SETTINGS: Final = [("cdc_consumer", "CHECKPOINT_LOCATION"), ("dead_letter", "DATABASE")]


def the_lock(service: str, directory: Path) -> AbstractContextManager[None]:
    if service == "dead_letter":
        return collector_lock(f"sqlite:///{directory}/letters.sqlite3")
    return owned_checkpoint(str(directory))


@pytest.mark.parametrize(("service", "setting"), SETTINGS)
@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_named_with_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: str, setting: str, code: int
) -> None:
    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(MisconfiguredError) as raised, the_lock(service, tmp_path):
        pytest.fail("it runs without a lock")

    message = str(raised.value)
    assert message.startswith(f"{tmp_path}/")
    assert f"cannot be locked: {os.strerror(code)}" in message
    assert f"set {setting} to a path on a file system that has file locks" in message


@pytest.mark.parametrize(("service", "setting"), SETTINGS)
def test_a_full_disk_is_named_with_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: str, setting: str
) -> None:
    def refuse(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(MisconfiguredError, match=f"cannot be written: No space left on device; .* or set {setting} to"):
        the_lock(service, tmp_path).__enter__()


@pytest.mark.parametrize("service", ["cdc_consumer", "dead_letter"])
def test_the_owner_is_named_with_its_host_because_each_container_has_a_process_1(tmp_path: Path, service: str) -> None:
    owner = rf"\(process {os.getpid()} on {socket.gethostname()}\)"
    with the_lock(service, tmp_path), pytest.raises(MisconfiguredError, match=owner):
        the_lock(service, tmp_path).__enter__()


def test_an_error_of_the_block_is_its_own(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="of the block"), the_lock("cdc_consumer", tmp_path):
        raise OSError("of the block")
