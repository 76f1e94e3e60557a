"""A start that is refused says why, and marks the table where rows of the mirror may be wrong; before the front."""

import asyncio
import io
import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels
from services.bigtable_reader.adapters.schema.catalog import BigtableCatalog
from services.bigtable_reader.core.changes.outputs import Outputs
from services.bigtable_reader.core.schema.resync import BigtableResyncKind
from services.bigtable_reader.ports import StreamGoneError
from services.bigtable_reader.settings import Settings
from services.bigtable_reader.wiring.doctor import doctor
from services.bigtable_reader.wiring.service import prepare, resync_requests_of
from services.bigtable_reader.wiring.stores import resync_store, watched_table
from shared.contracts.errors import MisconfiguredError
from shared.contracts.tables_file import read_tables_file
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop
from tests.integration.bigtable_front import CLUSTER, INSTANCE, Front

pytestmark = pytest.mark.integration


class Starting:
    """A table with a stream, a profile of its own, and a reader that begins."""

    def __init__(self, front: Front, retention: timedelta = timedelta(days=1)) -> None:
        self.table, self.profile = front.table("f", retention=retention), front.app_profile()
        self.environ = {**self.table.settings(), "APP_PROFILE": self.profile}
        self.settings = read_settings(Settings, self.environ)
        self.channels = BigtableChannels(front.address)

    async def start(self, tables_file: str = "") -> Outputs:
        """Do what comes before reading, with the first look."""
        file = read_tables_file(tables_file)
        outputs, store = await prepare(self.settings, file, self.channels, "reader", Stop())
        seen = await BigtableCatalog(self.channels, watched_table(self.settings)).seen()
        resync_requests = resync_requests_of(self.settings, self.channels, file)
        await resync_requests.compare(None, seen.families)
        await store.remember(seen)
        return outputs

    async def kinds(self) -> list[str]:
        """Return what the table is marked for."""
        resync_request = await resync_store(self.settings, self.channels).read()
        return [] if resync_request is None else [one.kind for one in resync_request.findings]


async def test_a_start_that_a_disabled_stream_or_another_routing_refuses_requests_a_resync_of_the_table(
    front: Front,
) -> None:
    starting = Starting(front)
    await starting.start()
    assert await starting.kinds() == []
    front.route(starting.profile, multi_cluster_routing_use_any={})
    with pytest.raises(MisconfiguredError, match=f"--route-to={CLUSTER}"):
        await starting.start()
    assert await starting.kinds() == [], "no condition is allowed: it is noted"
    routed = {"cluster_id": CLUSTER, "allow_transactional_writes": True}
    front.route(starting.profile, single_cluster_routing=routed)
    await starting.start()
    assert await starting.kinds() == [BigtableResyncKind.ROUTED_ELSEWHERE]
    starting.table.retain(None)
    with pytest.raises(StreamGoneError, match="--change-stream-retention-period"):
        await starting.start()
    assert await starting.kinds() == [
        BigtableResyncKind.ROUTED_ELSEWHERE,
        BigtableResyncKind.STREAM_DISABLED,
    ]
    await starting.channels.close()


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ('masked_columns = { row_key = "null" }', "masked_columns names column row_key .* in its primary key"),
        ('keep = "6d"', 'keep = "6d" of table .* shorter than the 7d that its change stream retains'),
    ],
)
async def test_a_tables_file_with_a_masked_key_or_a_short_history_is_refused_with_its_line_before_anything_is_made(
    front: Front, option: str, why: str
) -> None:
    starting = Starting(front, retention=timedelta(days=7))
    with pytest.raises(MisconfiguredError, match=f"^line 3 of the tables file: {why}"):
        await starting.start(f'[defaults]\nmode = "both"\n{option}\n')
    listed = front.tables.list_tables({"parent": INSTANCE})
    assert starting.settings.partition_table not in {table.name.rpartition("/")[2] for table in listed}
    await starting.channels.close()


def test_doctor_names_a_history_that_keeps_less_than_the_stream_retains(
    front: Front, pubsub_emulator: str, tmp_path: Path
) -> None:
    file = tmp_path / "tables.toml"

    async def made() -> Mapping[str, str]:
        starting = Starting(front, retention=timedelta(days=7))
        await starting.channels.close()
        return {**starting.environ, "PUBSUB_EMULATOR_HOST": pubsub_emulator, "TABLES_FILE": str(file)}

    def named(environ: Mapping[str, str], keep: str) -> list[tuple[str, str]]:
        file.write_text(f'[defaults]\nmode = "both"\nkeep = "{keep}"\n')
        out = io.StringIO()
        assert doctor(environ, out, as_json=True) == 1, "there is no topic"
        found = [one for one in json.loads(out.getvalue()) if one["check"] == "tables file: keep"]
        return [(one["level"], one["detail"].partition(":")[0]) for one in found]

    environ = asyncio.run(made())
    assert named(environ, "6d") == [("error", "line 3 of the tables file")]
    assert named(environ, "7d") == []
