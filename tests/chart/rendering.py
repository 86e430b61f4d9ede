"""Render the chart with helm, and find objects in the result. Also holds the documented combinations of values."""

import functools
import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "fanout"
_PINNED = Path.home() / ".cache" / "fanout" / "bin" / "helm"
HELM = os.environ.get("HELM") or (str(_PINNED) if _PINNED.is_file() else "helm")
"""The pinned helm, as `make test-chart` installs it; without it the one on the PATH."""
_SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
OLDEST, NEWEST = "1.27", "1.34"
OF_OTHERS = {"PodMonitor", "PrometheusRule", "HTTPRoute"}
"""Kinds of the Prometheus operator and of the Gateway API: not in the schemas of Kubernetes."""

SECRETS = {"database": {"name": "pg"}, "keyRing": {"name": "ring"}}
MINIMAL = {"secrets": SECRETS}
EVERYTHING = {
    "image": {"digest": f"sha256:{'0' * 64}", "pullSecrets": ["registry"]},
    "config": {
        "kafka": {
            "bootstrap_servers": "kafka:9093",
            "sasl_username": "fanout",
            "ssl_ca_file": "/etc/certificates/ca.crt",
            "spark_options": {"client.rack": "a"},
        },
        "delivery": {"allow_ports": [443], "unlimited_hosts": ["*.gateway.example.com"]},
        "source": {"topic_pattern": r"events\..+", "max_events_per_batch": 2_000_000},
        "schema_registry": {"topic_pattern": r"events\..+", "url": "https://schemas:8081", "username": "fanout"},
    },
    "secrets": SECRETS
    | {
        "apiDatabase": {"name": "pg-api"},
        "kafkaPassword": {"name": "kafka", "key": "secret"},
        "schemaRegistryPassword": {"name": "schemas"},
    },
    "certificates": {"configMap": "authorities", "secret": "kafka-client"},
    "secretsRevision": "2026-11",
    "serve": {
        "enabled": True,
        "autoscaling": {
            "enabled": True,
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {
                        "metric": {"name": "fanout_api_connections_in_use"},
                        "target": {"type": "AverageValue", "averageValue": "3"},
                    },
                }
            ],
        },
        "ingress": {"enabled": True, "host": "api.example.com", "tlsSecret": "tls", "annotations": {"a/b": "c"}},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "outside"}], "hostnames": ["api.example.com"]},
    },
    "archive": {"enabled": True},
    "test": {"endpointUrl": "https://hooks.example.com/fanout"},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "alerts": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True},
    "networkPolicy": {
        "enabled": True,
        "kafka": [{"to": [{"ipBlock": {"cidr": "10.0.0.5/32"}}], "ports": [{"port": 9093}]}],
        "postgres": [{"to": [{"ipBlock": {"cidr": "10.0.0.6/32"}}], "ports": [{"port": 5432}]}],
        "schemaRegistry": [{"to": [{"ipBlock": {"cidr": "10.0.0.8/32"}}], "ports": [{"port": 8081}]}],
    },
    "commonLabels": {"cost": "events"},
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/fanout"}},
    "podAnnotations": {"team": "events"},
    "nodeSelector": {"pool": "fanout"},
    "tolerations": [{"key": "fanout", "operator": "Exists"}],
    "priorityClassName": "high",
}
ONE = {"resources": {"requests": {"cpu": "1"}}, "checkpoint": {"size": "1Gi"}}
APART = {
    "secrets": SECRETS,
    "drivers": {
        "all": None,
        "fast": ONE | {"lanes": ["direct"]},
        "slow": ONE | {"lanes": ["batch", "retry"], "checkpoint": {"size": "1Gi", "existingClaim": "kept"}},
    },
}
REALTIME_APART = {
    "secrets": SECRETS,
    "config": {"source": {"realtime_pattern": r"events\.fast\..+"}},
    "drivers": {"all": {"lanes": ["direct"]}},
}
"""Lane realtime must run too: in another release."""
EACH = {"cores": 2, "requestCores": "1500m", "heap": "1g", "besidesHeap": "2g"}
EXECUTORS = {
    "secrets": SECRETS,
    "networkPolicy": EVERYTHING["networkPolicy"] | {"apiServer": [{"ports": [{"port": 6443}]}]},
    "drivers": {"all": {"lanes": ["direct", "batch"], "executors": EACH | {"count": 3}}, "slow": ONE | {"lanes": ["retry"]}},
}
AUTOSCALING = {"secrets": SECRETS, "drivers": {"all": {"executors": EACH | {"autoscaling": {"min": 2, "max": 12}}}}}
ON_A_STORE = {
    "secrets": SECRETS,
    "networkPolicy": EXECUTORS["networkPolicy"],
    "config": {"spark": {"conf": {"spark.hadoop.fs.s3a.endpoint": "https://s3.example.com"}}},
    "drivers": {
        "all": {
            "lanes": ["direct", "batch"],
            "executors": EACH | {"count": 3},
            "checkpoint": {"url": "s3a://bucket/all", "credentials": {"name": "store", "key": "credentials"}},
        },
        "slow": ONE | {"lanes": ["retry"], "checkpoint": {"url": "s3a://bucket/slow"}},
    },
}
DEVELOPMENT = yaml.safe_load((CHART / "values-development.yaml").read_text())
COMBINATIONS = {
    "minimal": MINIMAL,
    "everything": EVERYTHING,
    "apart": APART,
    "executors": EXECUTORS,
    "autoscaling": AUTOSCALING,
    "on-a-store": ON_A_STORE,
    "development": DEVELOPMENT,
}
VALUES = [pytest.param(values, id=name) for name, values in COMBINATIONS.items()]
PRODUCTION = [pytest.param(values, id=name) for name, values in COMBINATIONS.items() if name != "development"]


def helm(*arguments, values):
    return _run(arguments, json.dumps(values))


@functools.cache
def _run(arguments, values):
    """Many tests ask for the same rendering."""
    command = [HELM, *arguments, "--values", "-"]
    return subprocess.run(command, input=values, capture_output=True, text=True, check=False, timeout=60)


def text(values, release="here"):
    done = helm("template", release, str(CHART), values=values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(values, release="here"):
    # The loader of LibYAML takes a tenth of the time.
    return [document for document in yaml.load_all(text(values, release), _SAFE_LOADER) if document]


def of_kind(kind, documents):
    return {document["metadata"]["name"]: document for document in documents if document["kind"] == kind}


def pods(documents):
    """The pods of the platform by their component: of Deployments, of Jobs, and that of `helm test`."""
    found = {}
    for document in documents:
        if document["kind"] not in {"Deployment", "Job", "Pod"}:
            continue
        template = document if document["kind"] == "Pod" else document["spec"]["template"]
        if (component := template["metadata"]["labels"].get("app.kubernetes.io/component")) is not None:
            found[document["metadata"]["name"]] = (component, template["spec"])
    return found


def specs(documents):
    return [spec for _, spec in pods(documents).values()]


def settings_of(documents, name="here-fanout"):
    return of_kind("ConfigMap", documents)[name]["data"]["fanout.toml"]


def executor_template(values):
    """The pod template that Spark makes the executors of the driver `all` from."""
    return yaml.safe_load(of_kind("ConfigMap", rendered(values))["here-fanout-all"]["data"]["executor.yaml"])
