"""`make sbom`: the packages and the JARs of each image, as CycloneDX files in build/sbom.

cyclonedx-py describes what is installed in .venv. A file has the part of it that the image's locked requirements name,
with their hashes. Debian's packages are not in it: an image's own list of them is /var/lib/dpkg/status.
"""

import hashlib
import importlib.metadata
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
TOOLS: Final = ROOT / "build/deploy/bin"
IMAGES: Final = ("bigtable_reader", "cdc_consumer", "dead_letter", "emulators", "local", "spanner_reader", "toolbox")
"""The requirements of images; `emulators` are those of `bigquery` and of `bigtable_streams`."""

Component = dict[str, Any]
_PYTHON: Final = (3, 11)
GROUPS: Final = {
    "com.fasterxml.jackson.module": "jackson-module-scala_2.13",
    "com.github.luben": "zstd-jni",
    "com.google.code.findbugs": "jsr305",
    "com.google.crypto.tink": "tink",
    "com.twitter": "chill-java chill_2.13",
    "javax.jdo": "jdo-api",
    "javax.transaction": "jta transaction-api",
    "net.sourceforge.f2j": "arpack_combined_all",
    "org.apache.derby": "derby derbyshared derbytools",
    "org.apache.hadoop": "hadoop-client-runtime",
    "org.apache.ivy": "ivy",
    "org.apache.thrift": "libfb303 libthrift",
    "org.json4s": "json4s-ast_2.13 json4s-core_2.13 json4s-jackson-core_2.13 json4s-jackson_2.13 json4s-scalap_2.13",
    "org.objenesis": "objenesis",
    "org.roaringbitmap": "RoaringBitmap",
    "org.rocksdb": "rocksdbjni",
    "org.scala-lang": "scala-compiler scala-library scala-reflect",
    "org.scala-lang.modules": "scala-parallel-collections_2.13 scala-parser-combinators_2.13 scala-xml_2.13",
    "org.scalanlp": "breeze-macros_2.13 breeze_2.13",
    "org.tukaani": "xz",
    "org.typelevel": "algebra_2.13 cats-kernel_2.13 spire-macros_2.13 spire-platform_2.13 spire-util_2.13 spire_2.13",
    "org.xerial.snappy": "snappy-java",
    "oro": "oro",
    "stax": "stax-api",
}
"""The groups of Spark's JARs that have no pom.properties of their own.

Those of Spark 4.3.0 were compared with Maven Central, which has the same bytes under these names.
"""
_VALIDATE: Final = """
import sys
from pathlib import Path
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
validator = JsonStrictValidator(SchemaVersion.V1_6)
errors = [f"{file}: {error}" for file in sys.argv[1:] if (error := validator.validate_str(Path(file).read_text()))]
sys.exit("\\n".join(errors) or None)
"""


@dataclass(frozen=True, slots=True)
class Locked:
    """A package of a requirements file: `direct` if Millrace itself asks for it, `always` if on every platform."""

    name: str
    version: str
    hashes: Sequence[str]
    direct: bool
    always: bool


def locked(requirements: str) -> Iterator[Locked]:
    """Yield the packages of a requirements file."""
    for block in re.split(r"^(?=[A-Za-z0-9])", requirements, flags=re.MULTILINE):
        if found := re.match(r"([A-Za-z0-9._-]+)(?:\[.*?\])?==(\S+)(.*)", block):
            hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", block)
            yield Locked(_key(found[1]), found[2], hashes, "millrace (pyproject.toml)" in block, ";" not in found[3])


def image_sbom(image: str, installed: dict[str, Any], jars: Sequence[Component]) -> Mapping[str, Any]:
    """Return the SBOM of an image; SystemExit if .venv has another version of a package than the image."""
    packages = {_key(one["name"]): one for one in installed["components"]}
    wanted: dict[str, list[Locked]] = {}
    for each in locked((ROOT / f"requirements/{image}.txt").read_text()):
        wanted.setdefault(each.name, []).append(each)
    found: list[Component] = []
    direct: list[str] = []
    for name, versions in wanted.items():
        package = packages.get(name)
        if package is None and not any(one.always for one in versions):
            continue  # of another platform
        one = next((one for one in versions if package and package["version"] == one.version), None)
        if package is None or one is None:
            sys.exit(f"FAILED: .venv has not the version of {name} that requirements/{image}.txt names: make install")
        distribution = {
            "type": "distribution",
            "url": package["purl"],
            "hashes": [{"alg": "SHA-256", "content": each} for each in one.hashes],
        }
        kept = {key: value for key, value in package.items() if key != "description"}
        found.append(kept | {"externalReferences": [distribution]})
        direct += [package["bom-ref"]] if one.direct else []
    refs = {one["bom-ref"] for one in found}
    needs = {one["ref"]: one.get("dependsOn", ()) for one in installed["dependencies"]}
    root = installed["metadata"]["component"] | {"name": f"millrace/{image}"}
    edges = {root["bom-ref"]: direct} | {ref: [each for each in needs[ref] if each in refs] for ref in sorted(refs)}
    if spark := "pyspark" in wanted:
        edges[packages["pyspark"]["bom-ref"]] += [jar["bom-ref"] for jar in jars]
    return installed | {
        "metadata": installed["metadata"] | {"component": root},
        "components": [*found, *(jars if spark else ())],
        "dependencies": [{"ref": ref, "dependsOn": sorted(needed)} for ref, needed in edges.items()],
    }


def jar_component(jar: Path) -> Component:
    """Return what a JAR is and which libraries are packed inside it, by the pom.properties that it has.

    Where none of them is its own, its coordinates are the name of the file and a group that is known here.
    SystemExit if the group is not.
    """
    own: Component = {}
    packed: list[Component] = []
    with zipfile.ZipFile(jar) as archive:
        for name in sorted(archive.namelist()):
            if not re.fullmatch(r"META-INF/maven/[^/]+/[^/]+/pom\.properties", name):
                continue
            pom = dict(re.findall(r"^(\w+)\s*=\s*(\S+)", archive.read(name).decode(), re.MULTILINE))
            library = _maven(pom["groupId"], pom["artifactId"], pom["version"], "pom.properties")
            if f"{jar.stem}-".startswith(f"{library['name']}-{library['version']}-"):
                own = library
            else:
                packed.append(library | {"bom-ref": f"jar:{jar.name}/{library['purl']}"})
    if not own:
        found = re.fullmatch(r"(.+?)-(\d.*)", jar.stem)
        group = next((group for group, names in GROUPS.items() if found and found[1] in names.split()), None)
        if found is None or group is None:
            sys.exit(f"FAILED: {jar.name} does not say its Maven group: add it to GROUPS in deploy/release/sbom.py")
        own = _maven(group, found[1], found[2], "name of the file")
    digest = hashlib.sha256(jar.read_bytes()).hexdigest()
    component = own | {"bom-ref": f"jar:{jar.name}", "hashes": [{"alg": "SHA-256", "content": digest}]}
    return component | ({"components": packed} if packed else {})


def write_sboms(directory: Path) -> Sequence[Path]:
    """Write the SBOM of each image into a directory; SystemExit if one is not what CycloneDX 1.6 allows."""
    if sys.version_info[:2] != _PYTHON:
        sys.exit("FAILED: .venv has another Python than the images: make install PYTHON=/path/to/python3.11")
    command: list[str | Path] = [TOOLS / "cyclonedx-py", "environment", "--output-reproducible", "--no-validate"]
    command += ["--sv", "1.6", "--pyproject", ROOT / "pyproject.toml", sys.executable]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    installed = json.loads(ran.stdout)
    spark = Path(str(importlib.metadata.distribution("pyspark").locate_file("pyspark/jars")))
    jars = [jar_component(jar) for jar in sorted(spark.glob("*.jar"))]
    directory.mkdir(parents=True, exist_ok=True)
    files = [directory / f"{image}.cdx.json" for image in IMAGES]
    for image, file in zip(IMAGES, files, strict=True):
        file.write_text(json.dumps(image_sbom(image, installed, jars), indent=2) + "\n")
    subprocess.run([TOOLS / "python", "-c", _VALIDATE, *files], check=True)
    return files


def _maven(group: str, artifact: str, version: str, source: str) -> Component:
    """Return a library by its Maven coordinates, and where they come from."""
    return {
        "type": "library",
        "group": group,
        "name": artifact,
        "version": version,
        "purl": f"pkg:maven/{group}/{artifact}@{version}",
        "properties": [{"name": "millrace:coordinates", "value": source}],
    }


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    for written in write_sboms(ROOT / "build/sbom"):
        print(written.relative_to(ROOT))
