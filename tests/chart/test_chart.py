"""The chart: what it makes is valid and restricted, a mistake in its values is refused by its name, secrets stay in Secrets."""

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from delivery import settings

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "fanout"
HELM = os.environ.get("HELM", "helm")
OLDEST, NEWEST = "1.27", "1.34"
SECRETS = {"database": {"name": "pg"}, "keyRing": {"name": "ring"}}
MINIMAL = {"secrets": SECRETS}
EVERYTHING = {
    "image": {"digest": f"sha256:{'0' * 64}", "pullSecrets": ["registry"]},
    "config": {
        "kafka": {"bootstrap_servers": "kafka:9093", "sasl_username": "fanout", "spark_options": {"client.rack": "a"}},
        "delivery": {"allow_ports": [443], "unlimited_hosts": ["*.gateway.example.com"]},
        "source": {"topic_pattern": r"events\..+", "max_events_per_batch": 2_000_000},
    },
    "secrets": SECRETS | {"apiDatabase": {"name": "pg-api"}, "kafkaPassword": {"name": "kafka", "key": "secret"}},
    "serve": {
        "enabled": True,
        "autoscaling": {"enabled": True},
        "ingress": {"enabled": True, "host": "api.example.com", "tlsSecret": "tls", "annotations": {"a/b": "c"}},
    },
    "archive": {"enabled": True},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "alerts": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True},
    "networkPolicy": {
        "enabled": True,
        "kafka": [{"to": [{"ipBlock": {"cidr": "10.0.0.5/32"}}], "ports": [{"port": 9093}]}],
        "postgres": [{"to": [{"ipBlock": {"cidr": "10.0.0.6/32"}}], "ports": [{"port": 5432}]}],
    },
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
EXECUTORS = {
    "secrets": SECRETS,
    "networkPolicy": EVERYTHING["networkPolicy"] | {"apiServer": [{"ports": [{"port": 6443}]}]},
    "drivers": {
        "all": {"executors": {"count": 3, "cores": 2, "requestCores": "1500m", "heap": "1g", "besidesHeap": "2g"}},
        "slow": ONE | {"lanes": ["retry"]},
    },
}
ON_A_STORE = {
    "secrets": SECRETS,
    "networkPolicy": EXECUTORS["networkPolicy"],
    "config": {"spark": {"conf": {"spark.hadoop.fs.s3a.endpoint": "https://s3.example.com"}}},
    "drivers": {
        "all": EXECUTORS["drivers"]["all"]
        | {"checkpoint": {"url": "s3a://bucket/all", "credentials": {"name": "store", "key": "credentials"}}},
        "slow": ONE | {"lanes": ["retry"], "checkpoint": {"url": "s3a://bucket/slow"}},
    },
}
VALUES = [
    pytest.param(MINIMAL, id="minimal"),
    pytest.param(EVERYTHING, id="everything"),
    pytest.param(APART, id="apart"),
    pytest.param(EXECUTORS, id="executors"),
    pytest.param(ON_A_STORE, id="on a store"),
]


def helm(*arguments, values):
    command = [HELM, *arguments, "--values", "-"]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False, timeout=60)


def rendered(values):
    done = helm("template", "here", str(CHART), values=values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(kind, documents):
    return {document["metadata"]["name"]: document for document in documents if document["kind"] == kind}


def pods(documents):
    return [document["spec"]["template"]["spec"] for document in documents if document["kind"] in {"Deployment", "Job"}]


def executor_template(values=EXECUTORS):
    """The pod template that Spark makes the executors from."""
    return yaml.safe_load(of_kind("ConfigMap", rendered(values))["here-fanout-all"]["data"]["executor.yaml"])


@pytest.mark.parametrize("values", VALUES)
def test_the_chart_is_without_a_fault_for_the_linter(values):
    done = helm("lint", "--strict", str(CHART), values=values)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("values", VALUES)
def test_what_it_makes_is_valid_for_kubernetes(values, version):
    for document in rendered(values):
        if document["kind"] not in {"PodMonitor", "PrometheusRule"}:  # of the Prometheus operator
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("values", VALUES)
def test_every_pod_keeps_to_the_policy_restricted_and_writes_to_volumes_only(values):
    for pod in pods(rendered(values)):
        whole = pod["securityContext"]
        assert (whole["runAsNonRoot"], whole["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert all({"configMap", "projected", "emptyDir", "persistentVolumeClaim"} & volume.keys() for volume in pod["volumes"])
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"]
            assert "scratch" in {mount["name"] for mount in container["volumeMounts"]}


@pytest.mark.parametrize("values", VALUES)
def test_secrets_are_files_of_secrets_that_exist_and_none_is_made_or_may_be_read_over_the_api(values):
    documents = rendered(values)
    assert not {"Secret", "ClusterRole", "ClusterRoleBinding"} & {one["kind"] for one in documents}
    for pod in pods(documents):
        [container] = pod["containers"]
        named = {one["name"]: one["value"] for one in container["env"] if one["name"].startswith("FANOUT_")}
        [sources] = [volume["projected"]["sources"] for volume in pod["volumes"] if volume["name"] == "secrets"]
        files = {f"/run/secrets/fanout/{item['path']}" for source in sources for item in source["secret"]["items"]}
        assert all(name.endswith("_FILE") for name in named)
        assert set(named.values()) == files


def test_each_role_gets_the_secrets_that_it_needs_and_no_others():
    documents = rendered(EVERYTHING)
    named = {
        pod["containers"][0]["name"]: {one["name"] for one in pod["containers"][0]["env"] if one["name"].startswith("FANOUT_")}
        for pod in pods(documents)
    }
    database, ring = "FANOUT_DATABASE_URL_FILE", "FANOUT_KEYS_RING_FILE"
    assert named == {
        "driver": {database, ring, "FANOUT_KAFKA_SASL_PASSWORD_FILE"},
        "archive": {database, ring, "FANOUT_KAFKA_SASL_PASSWORD_FILE"},
        "serve": {database, ring, "FANOUT_API_DATABASE_URL_FILE"},
        "migrate": {database},
    }


def test_one_job_works_on_each_checkpoint_which_outlives_the_release():
    documents = rendered(APART)
    drivers = of_kind("Deployment", documents)
    assert set(drivers) == {"here-fanout-fast", "here-fanout-slow"}
    for driver in drivers.values():
        assert (driver["spec"]["replicas"], driver["spec"]["strategy"]) == (1, {"type": "Recreate"})
        assert driver["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= 60
    assert drivers["here-fanout-slow"]["spec"]["template"]["spec"]["containers"][0]["args"][-1] == "batch,retry"
    claims = of_kind("PersistentVolumeClaim", documents)
    assert {name: claim["metadata"]["annotations"] for name, claim in claims.items()} == {
        "here-fanout-fast": {"helm.sh/resource-policy": "keep"}
    }


def test_only_a_driver_with_executors_has_rights_in_the_cluster_and_they_are_on_pods_of_its_namespace():
    documents = rendered(EXECUTORS)
    assert {name: role["rules"] for name, role in of_kind("Role", documents).items()} == {
        "here-fanout-all": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete"]}]
    }
    [binding] = of_kind("RoleBinding", documents).values()
    assert [subject["name"] for subject in binding["subjects"]] == ["here-fanout-all"]
    with_token = {
        pod["serviceAccountName"]
        for pod in pods(documents)
        for volume in pod["volumes"]
        if any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", []))
    }
    assert with_token == {"here-fanout-all"}
    assert not {"Role", "RoleBinding"} & {one["kind"] for one in rendered(EVERYTHING)}


def test_executors_keep_to_the_policy_restricted_and_get_no_secret_and_no_token():
    template = executor_template()
    kubernetes_validate.validate(template | {"metadata": template["metadata"] | {"name": "x"}}, NEWEST, strict=False)
    pod = template["spec"]
    assert (pod["automountServiceAccountToken"], pod["serviceAccountName"]) == (False, "here-fanout")
    assert pod["securityContext"] == pods(rendered(EXECUTORS))[0]["securityContext"]
    assert {next(iter(volume.keys() - {"name"})) for volume in pod["volumes"]} == {"persistentVolumeClaim", "emptyDir"}
    [container] = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_a_driver_with_executors_shares_its_checkpoint_with_them_and_makes_a_task_for_each_core():
    documents = rendered(EXECUTORS)
    claims = of_kind("PersistentVolumeClaim", documents)
    assert claims["here-fanout-all"]["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claims["here-fanout-slow"]["spec"]["accessModes"] == ["ReadWriteOnce"]
    maps = of_kind("ConfigMap", documents)
    taken = settings.Settings.model_validate(tomllib.loads(maps["here-fanout-all"]["data"]["fanout.toml"]))
    assert (taken.spark.master, taken.spark.parallelism) == ("k8s://https://kubernetes.default.svc", 6)
    named = {volume["persistentVolumeClaim"]["claimName"] for volume in executor_template()["spec"]["volumes"][:1]}
    assert named == {"here-fanout-all"}
    assert "master" not in tomllib.loads(maps["here-fanout"]["data"]["fanout.toml"])["spark"]


def test_a_checkpoint_on_a_store_takes_the_place_of_a_volume():
    documents = rendered(ON_A_STORE)
    assert not of_kind("PersistentVolumeClaim", documents)
    maps = of_kind("ConfigMap", documents)
    for name in ("all", "slow"):
        taken = settings.Settings.model_validate(tomllib.loads(maps[f"here-fanout-{name}"]["data"]["fanout.toml"])).spark
        assert (taken.checkpoint, taken.checkpoint_lease) == (f"s3a://bucket/{name}", f"here-fanout-{name}")
        assert taken.conf["spark.hadoop.fs.s3a.endpoint"].get_secret_value() == "https://s3.example.com"
    assert "executor.yaml" not in maps["here-fanout-slow"]["data"]


def test_driver_and_executors_read_the_stores_credentials_from_a_file():
    driver = of_kind("Deployment", rendered(ON_A_STORE))["here-fanout-all"]["spec"]["template"]["spec"]
    for pod in (driver, executor_template(ON_A_STORE)["spec"]):
        [container] = pod["containers"]
        path = {one["name"]: one.get("value") for one in container["env"]}["AWS_SHARED_CREDENTIALS_FILE"]
        [mount] = [one for one in container["volumeMounts"] if path.startswith(one["mountPath"] + "/")]
        [volume] = [one for one in pod["volumes"] if one["name"] == mount["name"]]
        [source] = volume["projected"]["sources"]
        assert source["secret"] == {"name": "store", "items": [{"key": "credentials", "path": "credentials"}]}
    slow = of_kind("Deployment", rendered(ON_A_STORE))["here-fanout-slow"]["spec"]["template"]["spec"]
    assert "AWS_SHARED_CREDENTIALS_FILE" not in {one["name"] for one in slow["containers"][0]["env"]}


def test_a_driver_on_a_store_may_use_its_own_lease_and_no_other():
    roles = {name: role["rules"] for name, role in of_kind("Role", rendered(ON_A_STORE)).items()}
    lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    assert roles["here-fanout-slow"] == [
        lease | {"verbs": ["create"]},
        lease | {"verbs": ["get", "update"], "resourceNames": ["here-fanout-slow"]},
    ]
    assert [rule["resources"] for rule in roles["here-fanout-all"]] == [["pods"], ["leases"], ["leases"]]


def test_the_alerts_are_those_of_the_file_and_none_is_of_an_archive_that_is_not_run():
    def alerts(values):
        [rule] = of_kind("PrometheusRule", rendered(values)).values()
        return {one["alert"]: one for group in rule["spec"]["groups"] for one in group["rules"]}

    [group] = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    assert alerts(EVERYTHING) == {one["alert"]: one for one in group["rules"]}
    assert alerts(EVERYTHING).keys() - alerts(MINIMAL | {"alerts": {"enabled": True}}).keys() == {"FanoutArchiveStands"}


def test_the_dashboard_is_the_file_and_grafana_finds_it_by_its_label():
    made = of_kind("ConfigMap", rendered(EVERYTHING))["here-fanout-dashboard"]
    assert json.loads(made["data"]["fanout.json"]) == json.loads((CHART / "files" / "dashboard.json").read_text())
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_the_settings_are_those_that_the_platform_takes():
    written = of_kind("ConfigMap", rendered(EVERYTHING))["here-fanout"]["data"]["fanout.toml"]
    taken = settings.Settings.model_validate(tomllib.loads(written))
    assert taken.source.topic_pattern == r"events\..+"
    assert taken.source.max_events_per_batch == 2_000_000
    assert taken.delivery.unlimited_hosts == ("*.gateway.example.com",)
    assert taken.kafka.spark_options["client.rack"].get_secret_value() == "a"
    assert (taken.metrics.host, taken.spark.checkpoint) == ("0.0.0.0", "/var/lib/fanout/checkpoint")


def test_a_change_of_the_settings_starts_the_pods_anew_and_nothing_else_does():
    def checksum(values):
        return of_kind("Deployment", rendered(values))["here-fanout-all"]["spec"]["template"]["metadata"]["annotations"]

    assert checksum(MINIMAL) == checksum(MINIMAL | {"podMonitor": {"enabled": True}})
    assert checksum(MINIMAL) != checksum(MINIMAL | {"config": {"delivery": {"max_in_flight": 7}}})


def test_the_schema_knows_every_setting_and_no_secret():
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["config"]["properties"]
    known = {f"{area}.{field}" for area, fields in schema.items() for field in fields["properties"]}
    secret = {"database.url", "api.database_url", "keys.ring", "kafka.sasl_password"}
    assert known == set(settings.known_names()) - secret


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"serve": {"enabeld": True}}, "'enabeld'"),
        ({"config": {"kafka": {"bootstrap_server": "a"}}}, "'bootstrap_server'"),
        ({"config": {"database": {"url": "postgresql://a:b@c/d"}}}, "'url'"),
        ({"drivers": {"all": {"lanes": ["fast"]}}}, "/drivers/all/lanes/0"),
        ({"secrets": {}}, 'secrets.database.name is required: the name of a Secret that exists, with the key "url"'),
        ({"serve": {"enabled": True}}, "secrets.apiDatabase.name is required"),
        ({"networkPolicy": {"enabled": True}}, "networkPolicy.kafka is required"),
        (EXECUTORS | {"networkPolicy": EVERYTHING["networkPolicy"]}, "networkPolicy.apiServer is required"),
        ({"drivers": {"all": {"executors": {"count": 0}}}}, "/drivers/all/executors"),
        ({"drivers": {"all": {"checkpoint": {"url": "s3://bucket/all"}}}}, "/drivers/all/checkpoint/url"),
        ({"drivers": {"all": {"checkpoint": {"credentials": {"nmae": "store"}}}}}, "'nmae'"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
    ],
)
def test_a_mistake_in_the_values_is_refused_by_its_name(values, said):
    done = helm("template", "here", str(CHART), values=MINIMAL | values)
    assert done.returncode != 0
    assert said in done.stderr


def test_every_value_is_explained_where_it_stands():
    text = (CHART / "values.yaml").read_text()
    tops = re.findall(r"^(?:# .*\n)*(\w+):", text, re.MULTILINE)
    assert set(tops) == set(yaml.safe_load(text))
    explained = re.findall(r"^# .*\n(?:# .*\n)*(\w+):", text, re.MULTILINE)
    alike = {"nodeSelector", "tolerations", "priorityClassName"}  # stand below one comment
    assert set(tops) - set(explained) == alike


def test_the_package_the_image_and_the_chart_have_one_version():
    root = CHART.parents[2]
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == version
    assert set(re.findall(r"^ARG VERSION=(.*)$", (root / "deploy/image/Containerfile").read_text(), re.MULTILINE)) == {version}
