"""The list of contents names what was locked. Needs podman, syft and the image: `make test-image`."""

import json
import os
import re
import subprocess

import pytest
from packaging import requirements

from tests.support import reading

pytestmark = [pytest.mark.image, pytest.mark.timeout(900)]
IMAGE = os.environ.get("FANOUT_IMAGE", "localhost/fanout:dev")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    file = tmp_path_factory.mktemp("sbom") / "sbom.json"
    subprocess.run([reading.ROOT / "deploy" / "image" / "sbom", IMAGE, file], check=True, timeout=800)
    return json.loads(file.read_text())["components"]


def versions(parts, kind):
    """Name → version of the parts whose package URL is of this kind."""
    return {part["name"]: part["version"] for part in parts if part.get("purl", "").startswith(f"pkg:{kind}/")}


def test_it_names_every_locked_python_package_of_the_image(parts):
    lock = (reading.ROOT / "deploy" / "image" / "requirements.lock").read_text()
    required = [requirements.Requirement(line) for line in re.findall(r"^([a-z0-9][^\\]+)", lock, re.MULTILINE)]
    of_the_image = {"python_version": "3.11", "python_full_version": "3.11.2"}
    locked = {
        requirement.name: str(requirement.specifier).removeprefix("==")
        for requirement in required
        if requirement.marker is None or requirement.marker.evaluate(of_the_image)
    }
    named = {name.lower().replace("_", "-"): version for name, version in versions(parts, "pypi").items()}
    assert {name: named.get(name) for name in locked} == locked
    assert {"pyspark", "aiohttp", "fanout"} <= named.keys()


def test_it_names_every_locked_jar_of_the_connector(parts):
    lock = (reading.ROOT / "deploy" / "jars" / "jars.lock").read_text()
    locked = dict(re.findall(r"  connector/(.+)-([0-9][^-]*)\.jar$", lock, re.MULTILINE))
    named = versions(parts, "maven")
    assert {name: named.get(name) for name in locked} == locked


def test_it_names_the_java_runtime_and_debians_packages(parts):
    assert any("jdk" in part["name"] and part["version"].startswith("17.") for part in parts)
    assert {"libc6", "python3.11", "openssl"} <= versions(parts, "deb").keys()
