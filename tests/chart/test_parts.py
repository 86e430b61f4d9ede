"""The optional parts: alerts, dashboard, the API's ways in, `helm test`, Kafka and Postgres for trials."""

import json
import re
import tomllib

import pytest
import typer
import yaml

from delivery.config import plan_builder, settings
from fanout.cli import main
from subscriptions_db.secrets import keyring
from tests.chart import rendering


def alerts(values):
    asked = values | {"alerts": values.get("alerts", {}) | {"enabled": True}}
    [rule] = rendering.of_kind("PrometheusRule", rendering.rendered(asked)).values()
    return {alert["alert"]: alert for group in rule["spec"]["groups"] for alert in group["rules"]}


def test_the_alerts_are_those_of_the_parts_that_run():
    [group] = yaml.safe_load((rendering.CHART / "files" / "alerts.yaml").read_text())["groups"]
    every = alerts(rendering.EVERYTHING)
    assert [*every] == [alert["alert"] for alert in group["rules"]]
    assert every.keys() - alerts(rendering.MINIMAL).keys() == {"FanoutArchiveStands", "FanoutApiNotReady"}


def test_alerts_select_the_series_of_the_releases_namespace_only():
    """Regression: a release in another namespace hid that this one was absent, and alerts had no label to route them by."""
    [group] = yaml.safe_load((rendering.CHART / "files" / "alerts.yaml").read_text())["groups"]
    made = alerts(rendering.EVERYTHING)
    for alert in group["rules"]:
        here = made[alert["alert"]]
        selectors = re.findall(r"fanout_\w+(\{[^}]*\}|)", here["expr"])
        assert selectors
        assert all(selector.startswith('{namespace="default"') for selector in selectors), here["expr"]
        plain = here["expr"].replace('{namespace="default"}', "").replace('namespace="default",', "")
        assert plain == alert["expr"]
        assert here["labels"] == {"namespace": "default", "severity": alert["labels"]["severity"]}
        assert here | {"expr": "", "labels": {}} == alert | {"expr": "", "labels": {}}


def test_the_wait_that_is_an_alert_is_set_by_a_value():
    made = alerts(rendering.MINIMAL | {"alerts": {"maxBatchWaitSeconds": 90_000}})
    assert made["FanoutPendingTooLong"]["expr"].endswith('lane="batch"} > 90000')


@pytest.mark.parametrize(
    ("values", "lanes"),
    [
        (rendering.APART, ["direct", "batch", "retry"]),
        (rendering.MINIMAL | {"drivers": {"all": {"lanes": ["retry", "direct"]}}}, ["retry", "direct"]),
        (rendering.REALTIME_APART, ["direct", "realtime"]),
        (rendering.REALTIME_APART | {"drivers": {"all": {"lanes": ["batch", "retry"]}}}, ["batch", "retry"]),
        (rendering.REALTIME_APART | {"drivers": {"all": {"lanes": ["realtime", "direct"]}}}, ["realtime", "direct"]),
        (rendering.MINIMAL | {"drivers": {"all": {"lanes": ["direct", "realtime"]}}}, ["direct"]),
    ],
)
def test_each_lane_that_must_run_is_missed_when_it_is_absent(values, lanes):
    """Regression: with two drivers, the alert FanoutAbsent did not fire while one of them lived.

    Regression: no alert fired for topics that lane direct leaves out and no lane realtime delivers. One fired for ever where
    lane realtime is named and does not run, without its pattern.
    """
    terms = alerts(values)["FanoutAbsent"]["expr"].split(" or ")
    assert terms == [f'absent(fanout_ready{{namespace="default",lane="{lane}"}})' for lane in lanes]


def test_the_dashboard_is_the_file_with_grafanas_label():
    made = rendering.of_kind("ConfigMap", rendering.rendered(rendering.EVERYTHING))["here-fanout-dashboard"]
    assert json.loads(made["data"]["fanout.json"]) == json.loads((rendering.CHART / "files" / "dashboard.json").read_text())
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_an_http_route_leads_to_the_service_of_the_api():
    [route] = rendering.of_kind("HTTPRoute", rendering.rendered(rendering.EVERYTHING)).values()
    assert route["spec"] == {
        "parentRefs": [{"name": "outside"}],
        "hostnames": ["api.example.com"],
        "rules": [
            {
                "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                "backendRefs": [{"name": "here-fanout-serve", "port": 80}],
            }
        ],
    }


def test_the_monitor_asks_a_port_that_every_role_has():
    documents = rendering.rendered(rendering.EVERYTHING)
    [monitor] = rendering.of_kind("PodMonitor", documents).values()
    [asked] = [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]]
    port = tomllib.loads(rendering.settings_of(documents))["metrics"]["port"]
    for component, pod in rendering.pods(documents).values():
        if component in {"driver", "serve", "archive"}:
            assert {"name": asked, "containerPort": port} in pod["containers"][0]["ports"]


@pytest.mark.parametrize("values", rendering.VALUES)
def test_every_container_runs_a_command_that_exists(values):
    group = typer.main.get_command(main.app)
    for _, pod in rendering.pods(rendering.rendered(values)).values():
        words = pod["containers"][0]["args"]
        words = words[2:] if words[0] == "--config" else words
        command = group
        while words and words[0] in getattr(command, "commands", {}):
            command, words = command.commands[words[0]], words[1:]
        known = {option for parameter in command.params for option in parameter.opts}
        assert command is not group
        assert {word for word in words if word.startswith("--")} <= known


def test_helm_test_delivers_to_its_own_pod_or_a_named_endpoint():
    def words(values):
        [pod] = rendering.of_kind("Pod", rendering.rendered(values)).values()
        assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
        return pod["spec"]["containers"][0]["args"][2:]

    assert words(rendering.MINIMAL) == ["smoke-test", "--timeout", "60", "--host", "$(POD_IP)", "--port", "8080"]
    assert words(rendering.EVERYTHING)[3:] == ["--endpoint-url", "https://hooks.example.com/fanout"]


def test_the_network_lets_events_reach_the_tests_own_pod():
    def leads_to_the_test(values):
        [policy] = [
            policy
            for name, policy in rendering.of_kind("NetworkPolicy", rendering.rendered(values)).items()
            if name == "here-fanout"
        ]
        return "component: test" in yaml.safe_dump(policy["spec"]["egress"])

    assert not leads_to_the_test(rendering.EVERYTHING)
    assert leads_to_the_test(rendering.EXECUTORS)


def test_the_network_leads_to_the_schema_registry_where_there_is_one():
    def ports(values):
        policy = rendering.of_kind("NetworkPolicy", rendering.rendered(values))["here-fanout"]
        return {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}

    without = rendering.EVERYTHING["networkPolicy"] | {"schemaRegistry": []}
    assert ports(rendering.EVERYTHING) - ports(rendering.MINIMAL | {"networkPolicy": without}) == {8081}


def test_development_opens_the_guard_for_pods():
    documents = rendering.rendered(rendering.DEVELOPMENT)
    taken = settings.Settings.model_validate(tomllib.loads(rendering.settings_of(documents)))
    services = rendering.of_kind("Service", documents)
    host, port = taken.kafka.bootstrap_servers.split(":")
    assert services[host]["spec"]["ports"][0]["port"] == int(port)
    for address in ("10.244.0.7", "172.17.0.3", "192.168.5.5", "100.64.1.1", "[fd00:10:244::5]"):
        plan_builder.guard_of(taken.delivery).check_url(f"http://{address}:8080/")


def test_the_secret_of_development_is_one_that_the_platform_takes():
    documents = rendering.rendered(rendering.DEVELOPMENT)
    [secret] = rendering.of_kind("Secret", documents).values()
    ring = keyring.KeyRing.from_settings(settings.KeysSettings.model_validate({"ring": secret["stringData"]["ring"]}))
    assert ring.active == "development"
    assert "@here-fanout-postgres:5432/fanout" in secret["stringData"]["url"]
    for pod in rendering.specs(documents):
        [sources] = [volume["projected"]["sources"] for volume in pod["volumes"] if volume["name"] == "secrets"]
        assert {source["secret"]["name"] for source in sources} == {secret["metadata"]["name"]}
        assert {item["key"] for source in sources for item in source["secret"]["items"]} <= secret["stringData"].keys()


def test_only_production_migrates_before_all_else():
    [beside] = rendering.of_kind("Job", rendering.rendered(rendering.DEVELOPMENT)).values()
    assert "annotations" not in beside["metadata"]
    assert beside["metadata"]["name"] == "here-fanout-migrate-1"  # of the revision: a Job cannot be changed
    [before] = rendering.of_kind("Job", rendering.rendered(rendering.MINIMAL)).values()
    assert before["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"


def test_a_failed_migration_ends_an_upgrade_before_any_pod_changes():
    """Helm waits for a hook before it changes an object, and marks the release as failed where the hook fails.

    The failed Job stays, with its log, until the next attempt.
    """
    documents = rendering.rendered(rendering.EVERYTHING)
    hooks = [found for found in documents if "helm.sh/hook" in found["metadata"].get("annotations", {})]
    [migrate] = [found for found in hooks if found["kind"] == "Job"]
    assert migrate["metadata"]["annotations"] == {
        "helm.sh/hook": "pre-install,pre-upgrade",
        "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
    }
    assert (migrate["spec"]["backoffLimit"], migrate["spec"]["activeDeadlineSeconds"]) == (3, 600)  # it ends without success
    pod = migrate["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    names = {found["metadata"]["name"] for found in documents if found not in hooks}
    assert names.isdisjoint(texts(pod)), (
        "it uses an object of the release, which may not exist yet, or be of the version before"
    )


def texts(part):
    """Return all texts in a part of an object."""
    if isinstance(part, str):
        return {part}
    parts = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return {text for inner in parts for text in texts(inner)}


def test_the_data_of_development_goes_with_the_release():
    claims = rendering.of_kind("PersistentVolumeClaim", rendering.rendered(rendering.DEVELOPMENT))
    assert set(claims) == {"here-fanout-all", "here-fanout-kafka", "here-fanout-postgres"}
    assert all("annotations" not in claim["metadata"] for claim in claims.values())
    sizeless = {server: {"storage": {"size": ""}} for server in ("kafka", "postgres")}
    values = rendering.DEVELOPMENT | {"development": {"enabled": True, **sizeless}}
    assert set(rendering.of_kind("PersistentVolumeClaim", rendering.rendered(values))) == {"here-fanout-all"}
