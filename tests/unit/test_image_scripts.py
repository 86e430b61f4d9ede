"""The scripts of deploy/image, with podman and with docker. Both engines are stand-ins that record their calls."""

import json
import os
import shutil
import stat
import subprocess
import sys

import pytest

from tests.support.reading import ROOT

PROGRAMS = (
    "sh", "basename", "cat", "cut", "dirname", "find", "grep", "mkdir", "mktemp", "rm", "sed", "sha256sum", "sort", "wc",
    "xargs",
)  # fmt: skip
ENGINE = """#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
case "$1 $2" in
"save --quiet") [ "$(basename "$0")" = podman ] || { echo "unknown flag: --quiet" >&2; exit 125; } ;;
"info ") [ ! -f "$CALLS.refusal" ] || { cat "$CALLS.refusal" >&2; exit 1; } ;;
"image inspect") [ -f "$CALLS.label" ] || exit 1; cat "$CALLS.label" ;;
esac
"""
SYFT = """#!/bin/sh
for word; do case "$word" in cyclonedx-json=*) echo '{"purl": 1}' >"${word#*=}" ;; esac; done
"""


class Project:
    """A copy of the scripts, in a folder with one source file, and a PATH with stand-ins only."""

    def __init__(self, folder, engines):
        self.folder, self.bin, self.calls = folder, folder / "bin", folder / "calls"
        shutil.copytree(ROOT / "deploy" / "image", folder / "deploy" / "image")
        for name in ("delivery", "subscriptions_db", "fanout", "deploy/jars", ".venv/bin"):
            (folder / name).mkdir(parents=True)
        for name in ("delivery/job.py", "deploy/jars/ivy.xml", "deploy/jars/jars.lock"):
            (folder / name).write_text("1")
        self.bin.mkdir()
        for name in PROGRAMS:
            (self.bin / name).symlink_to(shutil.which(name))
        for name in engines:
            self.program(self.bin / name, ENGINE)
        self.program(folder / ".venv" / "bin" / "syft", SYFT)
        (folder / ".venv" / "bin" / "python").symlink_to(sys.executable)

    def program(self, path, text):
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run(self, script):
        environment = {"PATH": str(self.bin), "CALLS": str(self.calls), "HOME": os.environ["HOME"]}
        command = [str(self.folder / "deploy" / "image" / script)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def label(self, text):
        self.calls.with_suffix(".label").write_text(text)


@pytest.fixture
def docker(tmp_path):
    return Project(tmp_path, ["docker"])


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_the_sbom_is_written_with_either_engine(tmp_path, engine):
    project = Project(tmp_path, [engine])
    done = project.run("sbom")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 parts" in done.stdout
    assert f"{engine} save" in project.calls.read_text()


REPORT = {"dependencies": [{"name": "a", "vulns": []}, {"name": "b", "skip_reason": "not found"}]}


def auditing(project, script):
    project.program(project.folder / ".venv" / "bin" / "pip-audit", f"#!/bin/sh\n{script}\n")
    project.program(project.bin / "grype", "#!/bin/sh\n")
    return project.run("scan")


def test_the_report_of_an_earlier_scan_is_not_read(docker):
    (docker.folder / "build" / "image").mkdir(parents=True)
    (docker.folder / "build" / "image" / "pip-audit.json").write_text(json.dumps(REPORT))
    done = auditing(docker, "echo resolving >&2; echo 'the index does not answer' >&2; exit 1")
    assert done.returncode == 1
    assert "pip-audit failed, so no package was checked: the index does not answer" in done.stderr
    assert "packages were checked" not in done.stdout


@pytest.mark.parametrize(("advisories", "code"), [([], 0), ([{"id": "PYSEC-1"}], 1)])
def test_an_advisory_fails_the_scan(docker, advisories, code):
    report = {"dependencies": [{"name": "a", "vulns": advisories}, *REPORT["dependencies"][1:]]}
    (docker.folder / "report").write_text(json.dumps(report))
    done = auditing(docker, f"cat report >build/image/pip-audit.json; exit {code}")
    assert done.returncode == code, done.stderr
    assert f"1 of 2 packages were checked, {len(advisories)} advisories" in done.stdout


def test_an_image_of_other_sources_is_not_current(docker):
    assert (docker.run("is-current").returncode, docker.run("is-current").stdout) == (
        1,
        "there is no image localhost/fanout:dev\n",
    )
    docker.label(docker.run("sources").stdout)
    assert docker.run("is-current").returncode == 0
    (docker.folder / "delivery" / "__pycache__").mkdir()
    (docker.folder / "delivery" / "__pycache__" / "job.pyc").write_text("compiled")
    assert docker.run("is-current").returncode == 0
    (docker.folder / "delivery" / "job.py").write_text("2")
    done = docker.run("is-current")
    assert (done.returncode, done.stdout) == (1, "image localhost/fanout:dev was built from other sources than these\n")


def test_every_file_that_the_image_copies_is_in_its_sources():
    copied = {
        word
        for line in (ROOT / "deploy" / "image" / "Containerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    }
    sources = (ROOT / "deploy" / "image" / "sources").read_text()
    fetched = {"deploy/jars/lib/ivy.sha256", "deploy/jars/lib/connector", "deploy/jars/lib/store"}
    """The jars: the lock, which is in the sources, has the digest of each."""
    assert {name for name in copied - fetched if name.removeprefix("deploy/image/") not in sources} == set()


def test_the_pinned_helm_goes_before_one_on_the_path(tmp_path):
    (tmp_path / "helm").write_text("#!/bin/sh\n")
    (tmp_path / "helm").chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "HOME": "/home/somebody"}
    command = ["make", "--dry-run", "--always-make", "test-chart"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "HELM=/home/somebody/.cache/fanout/bin/helm " in done.stdout
    assert str(tmp_path) not in done.stdout


def test_a_docker_that_cannot_be_used_is_named_with_its_reason(docker):
    """Regression: the script went on, and ended in the middle of a build."""
    docker.calls.with_suffix(".refusal").write_text("permission denied")
    done = docker.run("sbom")
    assert done.returncode == 1
    assert "docker cannot be used (permission denied): start its daemon" in done.stderr
