"""The consumer as a process with a tables file: what it says reaches Spark's workers, and a wrong one is refused."""

from pathlib import Path

import pytest

from tests.builders import a_change, a_header, a_message
from tests.worlds.consumer import TIMEOUT, World, acks, ends

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

TABLES = """
exclude = ["tmp_*"]

[tables.planes]
mode = "both"
max_staleness = "1h"
soft_delete = true

[tables.pilots]
name = "crew"
ignored_columns = ["seats"]
"""


def test_what_the_file_says_is_done_by_the_workers_that_do_not_see_it(world: World, tmp_path: Path) -> None:
    file = tmp_path / "tables.toml"
    file.write_text(TABLES, encoding="utf-8")
    consumer = world.start("consumer", TABLES_FILE=str(file))
    file.unlink()  # as on other machines: the first task is still to come
    world.publish(
        a_message(a_change(1), a_change(2), a_change(1, 2, op="DELETE")),
        a_message(a_change(1, seats="not a number"), header=a_header("pilots")),
        a_message(a_change(1), header=a_header("tmp_planes")),
    )

    world.processes.wait_until(acks(consumer, 3), "every message to be acked", TIMEOUT)
    dataset = world.pipeline.dataset
    assert world.stand_in.run(f"SELECT COUNT(*) FROM {dataset}.planes_changelog") == [(3,)]
    assert {table.table_id for table in world.stand_in.client.list_tables(dataset)} == {
        "planes",
        "planes_changelog",
        "planes_history",
        "crew",
    }
    assert world.stand_in.client.get_table(f"{dataset}.planes").max_staleness == "0-0 0 1:0:0"
    assert [field.name for field in world.stand_in.client.get_table(f"{dataset}.crew").schema][:2] == ["id", "name"]
    assert consumer.metrics()["millrace_consumer_excluded_changes_total"] == 1
    assert ends(consumer) == 0
    assert world.dead_letters() == []
