"""The image holds what its roles run, and nothing to build with. Needs podman and the image: `make test-image`."""

import json
import os
import shutil
import subprocess
import tomllib

import pytest

from tests.support import reading

pytestmark = [
    pytest.mark.image,
    pytest.mark.skipif(shutil.which("podman") is None, reason="podman is needed"),
]
IMAGE = os.environ.get("FANOUT_IMAGE", "localhost/fanout:dev")
RESTRICTED = ("--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges", "--network", "none")
ROLES = (["run"], ["serve"], ["archive"], ["db", "migrate"], ["apply"], ["reconcile"], ["doctor"])
NOT_THERE = ("pip", "pip3", "gcc", "cc", "make", "javac", "jlink", "curl", "wget", "nc", "git")
ESCALATING = "find / -xdev -type f -perm /6000"
WRITABLE = "find / -xdev -perm -o+w ! -type l ! -path '/tmp*' ! -path '/var/tmp*' ! -path '/run/*' ! -path '/dev/*'"


def podman(*arguments):
    done = subprocess.run([str(shutil.which("podman")), *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_image(script, *options):
    return podman("run", "--rm", *RESTRICTED, *options, "--entrypoint", "/bin/sh", IMAGE, "-c", script)


@pytest.fixture(scope="module")
def described():
    [image] = json.loads(podman("image", "inspect", IMAGE))
    return image["Config"]


def test_it_runs_as_a_user_without_rights_by_the_command(described):
    assert described["User"] == "10001:10001"
    assert described["Entrypoint"] == ["/usr/bin/tini", "--", "/opt/venv/bin/fanout"]
    assert in_image("id -u; id -G").split() == ["10001", "10001"]


def test_its_labels_say_what_it_is_and_what_it_was_made_of(described):
    version = tomllib.loads((reading.ROOT / "pyproject.toml").read_text())["project"]["version"]
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in described["Labels"].items()}
    assert (labels["title"], labels["version"]) == ("fanout", version)
    assert len(labels["revision"]) == 40
    assert labels["created"].endswith("Z")
    assert labels["base.name"].endswith(("debian:bookworm-slim", "fanout-base:bookworm"))
    assert labels["base.digest"].startswith("sha256:")
    assert labels["description"]


@pytest.mark.parametrize("role", ROLES, ids=" ".join)
def test_every_role_answers_on_a_read_only_root_without_network(role):
    assert "Usage: fanout" in podman("run", "--rm", *RESTRICTED, IMAGE, *role, "--help")


def test_the_scripts_of_executors_are_there():
    assert in_image("for name in executor drain-executor java python; do command -v $name; done").split() == [
        "/opt/venv/bin/executor",
        "/opt/venv/bin/drain-executor",
        "/opt/java/bin/java",
        "/opt/venv/bin/python",
    ]


def test_there_is_nothing_to_build_or_to_fetch_with():
    assert in_image(f"for name in {' '.join(NOT_THERE)}; do command -v $name; done; true") == ""
    assert in_image("python -c 'import pip' 2>&1; true").strip().endswith("No module named 'pip'")


def test_its_package_manager_can_do_nothing():
    assert "are you root?" in in_image("apt-get install tini 2>&1; true") + in_image("dpkg --configure -a 2>&1; true")


def test_no_file_lends_its_owners_rights():
    assert in_image(ESCALATING, "--user", "0") == ""


def test_no_file_outside_the_scratch_folders_is_for_everybody_to_write():
    assert in_image(WRITABLE, "--user", "0") == ""


def test_the_checkpoint_has_a_folder_of_its_user():
    assert in_image("stat --format '%u:%g %a' /var/lib/fanout").strip() == "10001:10001 755"


def test_the_runtime_trusts_debians_authorities():
    assert int(in_image("stat --format %s $JAVA_HOME/lib/security/cacerts")) > 100_000


def test_no_library_of_the_runtime_misses_another():
    script = "for library in $JAVA_HOME/lib/server/libjvm.so $JAVA_HOME/bin/java; do ldd $library; done"
    assert "not found" not in in_image(script)


def test_no_start_compiles_modules_again():
    """Regression: every start compiled all modules, because the build changed the sources' times after the compilation."""
    imported = in_image("python -v -c 'import aiohttp, fanout.cli.main' 2>&1")
    assert "aiohttp/__pycache__/client.cpython-311.pyc" in imported
    assert "bytecode is stale" not in imported
