"""A real kube-apiserver with its etcd, for the contract with Kubernetes: no nodes, no pods, no controllers."""

from __future__ import annotations

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from fanout.local.kafka_server import free_port
from tests.k8s.cluster import layout

ADMIN = "admin-token"
STARTS_WITHIN_S = 60


class ApiServer:
    """An API server on ports of its own, whose files are below `folder`. It can be stopped, and started again on its port."""

    def __init__(self, folder):
        self._folder = folder
        self.port = free_port()
        self._etcd_port = free_port()
        self._running = {}
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        (folder / "sa.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
        (folder / "tokens.csv").write_text(f"{ADMIN},admin,admin,system:masters\n")

    def start(self):
        peer, client = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{self._etcd_port}"
        self._run(
            "etcd", "--data-dir", self._folder / "etcd", "--listen-peer-urls", peer, "--listen-client-urls", client,
            "--advertise-client-urls", client, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        )  # fmt: skip
        self.start_api()

    def start_api(self):
        key = self._folder / "sa.key"
        self._run(
            "kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{self._etcd_port}", "--secure-port", self.port,
            "--bind-address", "127.0.0.1", "--cert-dir", self._folder / "certificates", "--authorization-mode", "RBAC",
            "--token-auth-file", self._folder / "tokens.csv", "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-account-key-file", key, "--service-account-signing-key-file", key,
            "--service-cluster-ip-range", "10.0.0.0/24",
        )  # fmt: skip
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not self._is_ready():
            assert time.monotonic() < deadline, (self._folder / "kube-apiserver.log").read_text()[-2000:]
            time.sleep(0.1)

    def stop_api(self):
        self._end("kube-apiserver")

    def signal_api(self, number):
        self._running["kube-apiserver"].send_signal(number)

    def stop(self):
        for name in reversed(list(self._running)):
            self._end(name)

    def call(self, method, path, document=None, token=ADMIN):
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if document is None else json.dumps(document).encode(),
            headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
        )
        context = ssl.create_default_context(cafile=str(self.authority))
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:  # noqa: S310
            return json.loads(answer.read())

    @property
    def authority(self):
        return self._folder / "certificates" / "apiserver.crt"

    def account(self, folder, namespace, name, rules):
        """Make a service account with a Role of these rules; write its files into `folder` as a pod has them."""
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        self.call("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
        self.call("POST", f"{rbac}/roles", {"metadata": {"name": name}, "rules": rules})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        self.call("POST", f"{rbac}/rolebindings", {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token = self.call("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        folder.mkdir()
        for file, text in {"token": token, "namespace": namespace, "ca.crt": self.authority.read_text()}.items():
            (folder / file).write_text(text)
        return folder

    def _is_ready(self):
        try:
            self.call("GET", "/api/v1/namespaces/default")
        except (OSError, urllib.error.URLError):
            return False
        return True

    def _run(self, name, *arguments):
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen([layout.BIN / name, *map(str, arguments)], stdout=log, stderr=log)

    def _end(self, name):
        process = self._running.pop(name)
        process.kill()
        process.wait()
