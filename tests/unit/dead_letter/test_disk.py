"""On what the store's file is, by what the kernel says is mounted."""

from pathlib import Path

import pytest

from services.dead_letter.adapters.store.disk import mounts, short_lived

POD = """\
620 512 0:187 / / ro,relatime master:1 - overlay overlay rw,lowerdir=/a:/b,upperdir=/c
621 620 0:190 / /proc rw,nosuid - proc proc rw
630 620 0:195 / /tmp rw - tmpfs tmpfs rw
"""
VOLUME = POD + "640 620 8:16 / /var/lib/millrace rw,relatime - ext4 /dev/sdb rw\n"
SPACED = POD + "640 620 8:16 / /var/lib/mill\\040race rw,relatime - ext4 /dev/sdb rw\n"
IN_MEMORY = VOLUME + "650 640 0:200 / /var/lib/millrace rw - tmpfs tmpfs rw\n"
MACHINE = "26 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
FILE = "sqlite:////var/lib/millrace/dead_letters.sqlite3"


@pytest.mark.parametrize(
    ("database", "mounted", "message"),
    [
        (FILE, POD, "a container's own disk"),
        ("sqlite:////tmp/letters", VOLUME, "memory"),
        ("sqlite:////var/lib/millrace-else/letters", VOLUME, "a container's own disk"),
        (FILE, IN_MEMORY, "memory"),
        (FILE, VOLUME, ""),
        ("sqlite:////var/lib/mill race/letters", SPACED, ""),
        (FILE, MACHINE, ""),
        (FILE, "", ""),
        (FILE, "not what proc(5) says", ""),
        ("postgresql://me@db/letters", POD, ""),
        ("sqlite://", POD, ""),
    ],
)
def test_only_a_file_that_goes_with_its_container_is_reported(database: str, mounted: str, message: str) -> None:
    found = short_lived(database, mounted)
    assert (found or "").startswith(message)
    assert (found is None) is (message == "")


def test_the_kernel_reports_what_is_mounted(tmp_path: Path) -> None:
    lines = mounts().splitlines()
    assert any(line.split(" ")[4] == "/" for line in lines)
    assert short_lived(f"sqlite:///{tmp_path / 'letters'}", f"{mounts()}9 9 0:9 / {tmp_path} rw - overlay o rw\n")
