"""The files of a release: the SBOM of each image, and the chart with the digests of its images."""

import hashlib
import importlib.metadata
import json
import re
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from deploy.release.files import SERVICES, pushed_digests, version, write_chart
from deploy.release.sbom import GROUPS, IMAGES, ROOT, TOOLS, jar_component, write_sboms

OF_OTHERS: Final = ("sys_platform == 'win32'", "python_full_version >= '3.12'")
DIGESTS: Final = {name: f"sha256:{hashlib.sha256(name.encode()).hexdigest()}" for name in SERVICES}


@pytest.fixture(scope="module")
def sboms(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Any]]:
    """Return what `make sbom` writes; it fails on a file that CycloneDX's schema does not allow."""
    files = write_sboms(tmp_path_factory.mktemp("sbom"))
    return {file.name.removesuffix(".cdx.json"): json.loads(file.read_text()) for file in files}


def of_kind(sbom: Mapping[str, Any], kind: str) -> Sequence[Mapping[str, Any]]:
    """Return the components whose identifier is of a kind."""
    return [one for one in sbom["components"] if one["bom-ref"].startswith("jar:") == (kind == "jar")]


@pytest.mark.parametrize("image", IMAGES)
def test_an_sbom_names_the_packages_of_the_image_with_their_hashes(
    image: str, sboms: Mapping[str, Mapping[str, Any]]
) -> None:
    wanted = {}
    for block in re.split(r"\n(?=\w)", (ROOT / f"requirements/{image}.txt").read_text()):
        line = block.partition("\\")[0].strip()
        if not line.endswith(OF_OTHERS):
            name, _, rest = line.partition("==")
            wanted[f"pkg:pypi/{name}@{rest.split()[0]}"] = sorted(re.findall(r"sha256:(\w+)", block))

    found = {
        one["purl"].lower(): sorted(each["content"] for each in one["externalReferences"][0]["hashes"])
        for one in of_kind(sboms[image], "package")
    }

    assert found == wanted
    assert all(found.values())


@pytest.mark.parametrize("image", IMAGES)
def test_an_sbom_is_of_this_version_and_reports_what_needs_what(
    image: str, sboms: Mapping[str, Mapping[str, Any]]
) -> None:
    root = sboms[image]["metadata"]["component"]
    needs = {one["ref"]: set(one["dependsOn"]) for one in sboms[image]["dependencies"]}
    reached, new = set[str](), {root["bom-ref"]}
    while new:
        reached |= new
        new = {each for one in new for each in needs.get(one, ())} - reached

    assert (root["name"], root["version"]) == (f"millrace/{image}", version(ROOT))
    assert {one["bom-ref"] for one in sboms[image]["components"]} - reached == set()


def test_licences_are_named(sboms: Mapping[str, Mapping[str, Any]]) -> None:
    unnamed = {one["name"] for one in of_kind(sboms["toolbox"], "package") if not one.get("licenses")}
    assert unnamed <= {"google-cloud-bigquery", "protobuf"}  # their metadata has none that SPDX knows


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_with_spark_has_its_jars(image: str, sboms: Mapping[str, Mapping[str, Any]]) -> None:
    spark = Path(str(importlib.metadata.distribution("pyspark").locate_file("pyspark/jars")))
    jars = spark.glob("*.jar") if image in ("cdc_consumer", "toolbox") else ()
    found = of_kind(sboms[image], "jar")

    assert {one["bom-ref"]: one["hashes"][0]["content"] for one in found} == {
        f"jar:{jar.name}": hashlib.sha256(jar.read_bytes()).hexdigest() for jar in jars
    }
    assert [one for one in found if f"{one['name']}-{one['version']}" not in one["bom-ref"]] == []
    assert [one for one in found if one["purl"] != f"pkg:maven/{one['group']}/{one['name']}@{one['version']}"] == []


def test_the_coordinates_of_a_jar_are_its_own_or_those_that_are_known(sboms: Mapping[str, Mapping[str, Any]]) -> None:
    jars = of_kind(sboms["cdc_consumer"], "jar")
    sources = {one["purl"].partition("@")[0]: one["properties"][0]["value"] for one in jars}
    known = {f"pkg:maven/{group}/{name}" for group, names in GROUPS.items() for name in names.split()}

    assert {purl for purl, source in sources.items() if source == "name of the file"} == known
    assert sources["pkg:maven/org.apache.spark/spark-sql_2.13"] == "pom.properties"


def test_a_jar_without_coordinates_whose_group_is_not_known_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other-1.0.jar", "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")

    with pytest.raises(SystemExit, match=r"other-1\.0\.jar does not say its Maven group"):
        jar_component(tmp_path / "other-1.0.jar")


def test_the_libraries_that_are_packed_in_a_jar_are_part_of_it(sboms: Mapping[str, Mapping[str, Any]]) -> None:
    packed = {one["name"]: one.get("components", ()) for one in of_kind(sboms["cdc_consumer"], "jar")}

    assert "jetty-server" in {each["name"] for each in packed["spark-core_2.13"]}
    assert "jackson-databind" in {each["name"] for each in packed["hadoop-client-runtime"]}
    assert packed["libthrift"] == ()


def test_the_chart_of_a_release_names_each_image_by_its_digest(tmp_path: Path) -> None:
    for name, digest in DIGESTS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"containerimage.digest": digest, "image.name": "x"}))
    write_chart(tmp_path, str(TOOLS / "helm"), "registry.example/p", pushed_digests(tmp_path))

    with tarfile.open(tmp_path / f"millrace-{version(ROOT)}.tgz") as chart:
        file = chart.extractfile("millrace/values.yaml")
        assert file is not None
        image = yaml.safe_load(file)["image"]
    assert image == {"registry": "registry.example/p", "tag": "", "digests": DIGESTS, "pullPolicy": "IfNotPresent"}


def test_an_image_that_has_not_been_pushed_is_named(tmp_path: Path) -> None:
    (tmp_path / "dead_letter.json").write_text("{}")

    with pytest.raises(SystemExit, match="lacks the digests of bigtable_reader, cdc_consumer, spanner_reader"):
        pushed_digests(tmp_path)
