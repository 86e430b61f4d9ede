"""Find the programs of Kubernetes and an S3 server in the cache, or build them from Go modules.

Measured on two cores that had other work: 6 min 11 s for the seven of Kubernetes, 503 MB. `k8s.io/kubernetes` refuses
`go install pkg@version` because its go.mod has replacements, so each build has a module of its own that repeats them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.k8s.cluster import layout
from tests.k8s.cluster.failure import ClusterError

OF_KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")
_PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "coredns": "github.com/coredns/coredns",
    "versitygw": "github.com/versity/versitygw/cmd/versitygw",
    **{name: f"k8s.io/kubernetes/cmd/{name}" for name in OF_KUBERNETES},
}
_STAGED = re.compile(r"^\t(k8s\.io/[a-z0-9-]+) => \./staging", re.MULTILINE)


def ensure(say: Callable[[str], None]) -> None:
    """Build the programs that the cache lacks; return at once when it has all."""
    missing = [name for name in _PACKAGES if not (layout.BIN / name).is_file()]
    if not missing:
        return
    if shutil.which("go") is None:
        raise ClusterError(f"{layout.BIN} lacks {', '.join(missing)}, and Go to build them is missing: apt-get install golang")
    say(f"building {', '.join(missing)} into {layout.BIN} (7 minutes for all on two cores, once) ...")
    layout.BIN.mkdir(parents=True, exist_ok=True)
    for name in missing:
        began = time.monotonic()
        _build(name)
        say(f"{name}: {time.monotonic() - began:.0f} s")


def _build(name: str) -> None:
    folder = layout.SOURCE / ("kube" if name in OF_KUBERNETES else name)
    if not (folder / "go.sum").is_file():
        _write_module(folder, name)
        _go("mod", "tidy", folder=folder)
    flags = "-s -w"
    if name in OF_KUBERNETES:
        major, minor, _ = layout.KUBERNETES.split(".")
        version = "k8s.io/component-base/version"
        flags += f" -X {version}.gitVersion=v{layout.KUBERNETES} -X {version}.gitMajor={major} -X {version}.gitMinor={minor}"
    unfinished = layout.BIN / f".{name}"
    _go("build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", str(unfinished), _PACKAGES[name], folder=folder)
    unfinished.replace(layout.BIN / name)


def _write_module(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replacements: list[str] = []
    programs = [name]
    if name in OF_KUBERNETES:
        required = f"k8s.io/kubernetes v{layout.KUBERNETES}"
        staged = "v0." + layout.KUBERNETES.removeprefix("1.")
        replacements = [f"replace {module} => {module} {staged}" for module in _staged_modules(folder)]
        programs = list(OF_KUBERNETES)
    elif name == "etcd":
        required = f"go.etcd.io/etcd/server/v3 v{layout.ETCD}"
    elif name == "coredns":
        required = f"github.com/coredns/coredns v{layout.COREDNS}"
    else:
        required = f"github.com/versity/versitygw v{layout.VERSITYGW}"
    imports = [f'import _ "{_PACKAGES[program]}"' for program in programs]
    (folder / "go.mod").write_text("\n".join(["module example.invalid/build", "", f"require {required}", *replacements, ""]))
    (folder / "tools.go").write_text("\n".join(["//go:build tools", "", "package tools", "", *imports, ""]))


def _staged_modules(folder: Path) -> list[str]:
    """Return the modules that the source of Kubernetes replaces by folders of its own."""
    found = json.loads(_go("mod", "download", "-json", f"k8s.io/kubernetes@v{layout.KUBERNETES}", folder=folder))
    return _STAGED.findall(Path(found["GoMod"]).read_text())


def _go(*arguments: str, folder: Path) -> str:
    done = subprocess.run(
        ["go", *arguments],  # noqa: S607  # the one of the PATH
        cwd=folder,
        env=os.environ | {"CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ClusterError(f"go {' '.join(arguments)} failed in {folder}: {done.stderr[-2000:]}")
    return done.stdout
