"""deploy/compose and the chart run the roles alike: the same commands, settings, secrets and times to stop."""

import tomllib

import yaml

from tests.chart import rendering as chart

COMPOSE = chart.CHART.parents[1] / "compose"
ROLES = {"migrate": "migrate", "job": "driver", "serve": "serve", "archive": "archive"}


def test_both_run_the_roles_alike():
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    nameless = {"kafkaPassword": {"name": ""}, "schemaRegistryPassword": {"name": ""}}
    documents = chart.rendered(chart.EVERYTHING | {"secrets": chart.EVERYTHING["secrets"] | nameless})
    pods = {
        document["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]: document["spec"]["template"]["spec"]
        for document in documents
        if document["kind"] in {"Deployment", "Job"}
    }
    for name, component in ROLES.items():
        service, pod = services[name], pods[component]
        [container] = pod["containers"]
        arguments = [word for word in container["args"] if word not in {"--config", "/etc/fanout/fanout.toml"}]
        assert arguments[: len(service["command"])] == service["command"]
        named = {variable["name"] for variable in container["env"]}
        assert named == service["environment"].keys() - {"FANOUT_CONFIG"}
        if name != "migrate":
            assert service["stop_grace_period"] == f"{pod['terminationGracePeriodSeconds']}s"


def test_both_give_the_roles_the_same_settings():
    own = tomllib.loads((COMPOSE / "fanout.toml").read_text())
    rendered = chart.of_kind("ConfigMap", chart.rendered(chart.MINIMAL))["here-fanout"]["data"]["fanout.toml"]
    assert own == tomllib.loads(rendered) | {"kafka": {"bootstrap_servers": "kafka:9092"}}
