"""A checkpoint is writable and of one consumer, or the consumer does not start."""

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.cdc_consumer.__main__ import main
from services.cdc_consumer.adapters.spark.checkpoint import (
    move_damaged_checkpoint,
    on_disk,
    owned_checkpoint,
    prepare_checkpoint,
    unreadable_offsets,
)
from services.cdc_consumer.wiring.service import FAILED
from shared.contracts.errors import MisconfiguredError
from shared.runtime.service import MISCONFIGURED
from tests.unit.cdc_consumer.world import NEEDED

ROOT = Path(__file__).resolve().parents[2]
OWNING = """
import sys
from services.cdc_consumer.adapters.spark.checkpoint import owned_checkpoint
with owned_checkpoint(sys.argv[1]):
    print("owned", flush=True)
    sys.stdin.read()
"""


def test_a_checkpoint_has_one_consumer_until_that_is_killed(tmp_path: Path) -> None:
    checkpoint = tmp_path / "made{}" / "by it"
    command = [sys.executable, "-c", OWNING, str(checkpoint)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(ROOT)}
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "owned\n"

        owner = rf"process {other.pid} on {socket.gethostname()}"
        message = rf"another consumer \({owner}\) uses the checkpoint .*CHECKPOINT_LOCATION of its own"
        with pytest.raises(MisconfiguredError, match=message), owned_checkpoint(str(checkpoint)):
            pass
        with owned_checkpoint(str(tmp_path / "another")):
            pass
        other.kill()

    for _ in range(2):
        with owned_checkpoint(str(checkpoint)):
            pass


def test_a_consumer_that_cannot_write_its_checkpoint_ends_with_the_setting_and_without_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no directory")
    places = {"CHECKPOINT_LOCATION": tmp_path / "file" / "checkpoint", "SPARK_HOME": tmp_path / "nowhere"}
    for name, value in (NEEDED | {name: str(path) for name, path in places.items()}).items():
        monkeypatch.setenv(name, value)

    assert main([]) == MISCONFIGURED

    output = capsys.readouterr().err
    assert f"checkpoint {tmp_path}/file/checkpoint cannot be used: Not a directory" in output
    assert "CHECKPOINT_LOCATION" in output


def test_of_a_damaged_checkpoint_sparks_files_alone_are_moved_and_only_the_last_ones_stay(tmp_path: Path) -> None:
    kept = tmp_path / "suspects"
    kept.mkdir()
    for number in ("1", "2"):
        (tmp_path / "offsets").mkdir()
        (tmp_path / "offsets" / number).touch()
        (tmp_path / ".metadata.crc").write_text(number)
        assert move_damaged_checkpoint(f"file://{tmp_path}") == tmp_path / "damaged"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged", "suspects"]
    assert [path.name for path in (tmp_path / "damaged" / "offsets").iterdir()] == ["2"]

    assert move_damaged_checkpoint("gs://bucket/x") is None


@pytest.mark.parametrize(
    "cut_off", ["v1", 'v1\n{"batchWatermarkMs":0}', 'v1\n{"batchWatermarkMs":0}\n{"bat', 'v1\n{}\n{"batch":10\0\0']
)
def test_a_last_line_of_the_newest_offsets_that_is_cut_off_is_damage_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cut_off: str
) -> None:
    (tmp_path / "offsets").mkdir()
    assert unreadable_offsets(str(tmp_path)) is None
    whole = 'v1\n{"batchWatermarkMs":0}\n{"batch": 10}'
    for number, text in (("8", cut_off), ("9", whole), ("10", whole), (".11.tmp", cut_off)):
        (tmp_path / "offsets" / number).write_text(text)
    assert unreadable_offsets(str(tmp_path)) is None

    (tmp_path / "offsets" / "10").write_text(cut_off)
    for name, value in (NEEDED | {"CHECKPOINT_LOCATION": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    assert main([]) == FAILED

    output = capsys.readouterr().err
    assert "checkpoint_damaged" in output
    assert f"the last line of {tmp_path}/offsets/10" in output
    assert (tmp_path / "damaged" / "offsets" / "10").read_text() == cut_off


def test_the_offsets_before_the_newest_are_read_only_if_the_newest_micro_batch_was_not_committed(
    tmp_path: Path,
) -> None:
    for directory in ("offsets", "commits"):
        (tmp_path / directory).mkdir()
    (tmp_path / "offsets" / "10").write_text('v1\n{"batchWatermarkMs":0}\n{"bat')
    (tmp_path / "offsets" / "11").write_text('v1\n{"batchWatermarkMs":0}\n{"batch": 11}')
    assert unreadable_offsets(str(tmp_path)) == tmp_path / "offsets" / "10"

    (tmp_path / "commits" / "11").touch()
    assert unreadable_offsets(str(tmp_path)) is None


@pytest.mark.parametrize("left_to_spark", ["", 'v2\n{"batchWatermarkMs":0}\n0:{"batch": 11}'])
def test_offsets_that_are_empty_or_of_another_form_are_left_to_spark(tmp_path: Path, left_to_spark: str) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "11").write_text(left_to_spark)
    assert unreadable_offsets(str(tmp_path)) is None


@pytest.mark.parametrize("scheme", ["file://", "file:"])
def test_a_file_url_is_the_directory_that_it_names(tmp_path: Path, scheme: str) -> None:
    assert on_disk(f"{scheme}/checkpoints/of one") == Path("/checkpoints/of one")
    with owned_checkpoint(f"{scheme}{tmp_path}/checkpoint"):
        assert (tmp_path / "checkpoint").is_dir()
        with pytest.raises(MisconfiguredError, match="another consumer"):
            owned_checkpoint(str(tmp_path / "checkpoint")).__enter__()


@pytest.mark.parametrize("location", [None, "", "gs://bucket/x", "s3a://b/x", "hdfs://host:8020/x", "file://host/x"])
def test_what_is_not_on_a_disk_of_this_machine_has_no_lock(location: str | None) -> None:
    assert on_disk(location) is None
    with owned_checkpoint(location), owned_checkpoint(location):
        pass


@pytest.mark.parametrize(
    ("location", "in_spark", "prepared"),
    [
        ("/checkpoints/of one", "file:///checkpoints/of one", True),  # and not where `fs.defaultFS` points
        ("file:/checkpoints/of one", "file:///checkpoints/of one", True),
        ("gs://bucket/x", "gs://bucket/x", False),
    ],
)
def test_spark_keeps_its_files_where_the_lock_is(location: str, in_spark: str, prepared: bool) -> None:
    given: dict[str, str] = {}
    session: Any = SimpleNamespace(version="4.1.0", conf=SimpleNamespace(set=given.__setitem__))

    assert prepare_checkpoint(session, location) == in_spark
    assert bool(given) == prepared
