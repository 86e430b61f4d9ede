"""A checkpoint on an object store: no volume, a Lease of its own, credentials from a file."""

import tomllib

from delivery.config import settings
from tests.chart import rendering
from tests.chart.rendering import ON_A_STORE


def test_a_checkpoint_on_a_store_takes_the_place_of_a_volume():
    documents = rendering.rendered(ON_A_STORE)
    assert not rendering.of_kind("PersistentVolumeClaim", documents)
    for name in ("all", "slow"):
        written = tomllib.loads(rendering.settings_of(documents, f"here-fanout-{name}"))
        taken = settings.Settings.model_validate(written).spark
        assert (taken.checkpoint, taken.checkpoint_lease) == (f"s3a://bucket/{name}", f"here-fanout-{name}")
        assert taken.conf["spark.hadoop.fs.s3a.endpoint"].get_secret_value() == "https://s3.example.com"
    assert "executor.yaml" not in rendering.of_kind("ConfigMap", documents)["here-fanout-slow"]["data"]


def test_driver_and_executors_read_the_credentials_from_a_file():
    drivers = rendering.of_kind("Deployment", rendering.rendered(ON_A_STORE))
    pod = drivers["here-fanout-all"]["spec"]["template"]["spec"]
    for spec in (pod, rendering.executor_template(ON_A_STORE)["spec"]):
        [container] = spec["containers"]
        path = {variable["name"]: variable.get("value") for variable in container["env"]}["AWS_SHARED_CREDENTIALS_FILE"]
        [mount] = [mount for mount in container["volumeMounts"] if path.startswith(mount["mountPath"] + "/")]
        [volume] = [volume for volume in spec["volumes"] if volume["name"] == mount["name"]]
        [source] = volume["projected"]["sources"]
        assert source["secret"] == {"name": "store", "items": [{"key": "credentials", "path": "credentials"}]}
    [slow] = drivers["here-fanout-slow"]["spec"]["template"]["spec"]["containers"]
    assert "AWS_SHARED_CREDENTIALS_FILE" not in {variable["name"] for variable in slow["env"]}


def test_a_driver_on_a_store_may_use_its_own_lease_and_no_other():
    roles = rendering.of_kind("Role", rendering.rendered(ON_A_STORE))
    lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    assert roles["here-fanout-slow"]["rules"] == [
        lease | {"verbs": ["create"]},
        lease | {"verbs": ["get", "update"], "resourceNames": ["here-fanout-slow"]},
    ]
    assert [rule["resources"] for rule in roles["here-fanout-all"]["rules"]] == [["pods"], ["leases"], ["leases"]]
