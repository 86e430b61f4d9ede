"""Names within the cluster: CoreDNS, a process of this machine behind the usual address of the DNS service."""

from __future__ import annotations

from tests.k8s.cluster import kubectl, layout, processes

COREFILE = """\
.:{port} {{
    bind {address}
    errors
    kubernetes cluster.local {{
        kubeconfig {kubeconfig}
    }}
    cache 5
}}
"""


def start() -> None:
    """Start CoreDNS, and make the service that leads to it."""
    path = layout.STATE / "Corefile"
    path.write_text(COREFILE.format(port=layout.DNS_PORT, address=layout.CONTROL_PLANE, kubeconfig=layout.KUBECONFIG))
    processes.start("coredns", [str(layout.BIN / "coredns"), "-conf", str(path)])
    named = {"name": "kube-dns", "namespace": "kube-system"}
    protocols = {"dns": "UDP", "dns-tcp": "TCP"}
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": named,
            "spec": {
                "clusterIP": layout.DNS_SERVICE,
                "ports": [
                    {"name": name, "port": 53, "protocol": protocol, "targetPort": layout.DNS_PORT}
                    for name, protocol in protocols.items()
                ],
            },
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": named | {"labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [layout.CONTROL_PLANE]}],
            "ports": [{"name": name, "port": layout.DNS_PORT, "protocol": protocol} for name, protocol in protocols.items()],
        },
    )
