"""etcd, the API server, the controllers and the scheduler: processes of this machine."""

from __future__ import annotations

import yaml

from tests.k8s.cluster import kubectl, layout, processes

NAMES = ("scheduler", "controller-manager", "apiserver", "etcd")
"""In the order in which they end."""
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        # Requests of pods' own accounts: the tests compare them with the rights that the chart grants.
        {"level": "Metadata", "userGroups": ["system:serviceaccounts:fanout"]},
        {"level": "None"},
    ],
}


def start() -> None:
    """Start them, and return when the API server says that it is ready."""
    _start_etcd()
    _start_api_server()
    processes.await_true("apiserver", lambda: kubectl.run("get", "--raw", "/readyz", check=False).returncode == 0)
    common = ["--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=0"]
    manager, scheduler = layout.STATE / "controller-manager.kubeconfig", layout.STATE / "scheduler.kubeconfig"
    processes.start(
        "controller-manager",
        [
            str(layout.BIN / "kube-controller-manager"),
            f"--kubeconfig={manager}",
            f"--service-account-private-key-file={layout.PKI / 'accounts.key'}",
            f"--root-ca-file={layout.PKI / 'ca.crt'}",
            "--use-service-account-credentials=true",
            f"--cluster-cidr={layout.PODS}",
            *common,
        ],
    )
    processes.start("scheduler", [str(layout.BIN / "kube-scheduler"), f"--kubeconfig={scheduler}", *common])


def stop() -> None:
    """End them gracefully."""
    for name in NAMES:
        processes.stop(name)


def _start_etcd() -> None:
    client, peer = f"http://127.0.0.1:{layout.ETCD_PORT}", f"http://127.0.0.1:{layout.ETCD_PEER_PORT}"
    processes.start(
        "etcd",
        [
            str(layout.BIN / "etcd"),
            f"--data-dir={layout.STATE / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ],
    )


def _start_api_server() -> None:
    policy = layout.STATE / "audit-policy.yaml"
    policy.write_text(yaml.safe_dump(AUDIT_POLICY))
    pki = layout.PKI
    processes.start(
        "apiserver",
        [
            str(layout.BIN / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{layout.ETCD_PORT}",
            f"--bind-address={layout.CONTROL_PLANE}",
            f"--advertise-address={layout.CONTROL_PLANE}",
            f"--secure-port={layout.API_PORT}",
            f"--service-cluster-ip-range={layout.SERVICES}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'admin.crt'}",
            f"--kubelet-client-key={pki / 'admin.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki / 'accounts.pub'}",
            f"--service-account-signing-key-file={pki / 'accounts.key'}",
            "--allow-privileged=true",
            f"--cert-dir={layout.STATE / 'apiserver'}",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={layout.AUDIT_LOG}",
        ],
    )
