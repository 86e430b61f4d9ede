"""A mistake in the values is refused before anything is installed, and named."""

import json

import pytest

from delivery.config import settings
from fanout.documents import chart_reference
from tests.chart import rendering


def with_serve(**fields):
    return {"serve": {"enabled": True, **fields}, "secrets": rendering.EVERYTHING["secrets"]}


def with_executors(**fields):
    return {"drivers": {"all": {"executors": rendering.EACH | fields}}}


def with_realtime_beside(executors, **spark):
    """Lane realtime with its pattern and another lane in one driver, which has executors."""
    config = {"source": {"realtime_pattern": r"events\.fast\..+"}, "spark": spark}
    return {"config": config, "drivers": {"all": {"lanes": ["direct", "realtime"], "executors": rendering.EACH | executors}}}


def with_policy(**fields):
    return {"networkPolicy": rendering.EVERYTHING["networkPolicy"] | fields}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"serve": {"enabeld": True}}, "'enabeld'"),
        ({"config": {"kafka": {"bootstrap_server": "a"}}}, "'bootstrap_server'"),
        ({"config": {"delivery": {"max_in_flight": "many"}}}, "/config/delivery/max_in_flight"),
        ({"config": {"delivery": {"attempt_timeout_s": 0}}}, "/config/delivery/attempt_timeout_s"),
        ({"config": {"database": {"url": "postgresql://a:b@c/d"}}}, "'url'"),
        ({"drivers": {"all": {"lanes": ["fast"]}}}, "/drivers/all/lanes/0"),
        ({"secrets": {}}, 'secrets.database.name is required: the name of a Secret that exists, with the key "url"'),
        ({"serve": {"enabled": True}}, "secrets.apiDatabase.name is required"),
        (with_serve(kafkaUsername="producers"), "serve.kafkaUsername and secrets.apiKafkaPassword.name need each other"),
        ({"config": {"api": {"publishing": True}}}, "'publishing'"),
        (with_serve(httpRoute={"enabled": True}), "serve.httpRoute.parentRefs is required"),
        (with_serve(ingress={"enabled": True}), "serve.ingress.host is required"),
        ({"networkPolicy": {"enabled": True}}, "networkPolicy.kafka is required"),
        (
            rendering.EVERYTHING | {"networkPolicy": rendering.EVERYTHING["networkPolicy"] | {"schemaRegistry": []}},
            "networkPolicy.schemaRegistry is required",
        ),
        (rendering.EXECUTORS | {"networkPolicy": rendering.EVERYTHING["networkPolicy"]}, "networkPolicy.apiServer is required"),
        (with_policy() | {"config": {"delivery": {"allow_ports": [443, 9443]}}}, "config.delivery.allow_ports has port 9443"),
        (with_policy(ports=[80]) | {"config": {"delivery": {"allow_ports": [443]}}}, "Add it to networkPolicy.ports, or "),
        (with_realtime_beside({"count": 1, "cores": 1}), "drivers.all.executors have one core at the start"),
        (with_realtime_beside({"count": 2}, parallelism=4), "config.spark.parallelism leaves lane realtime no core: it is 4"),
        (with_realtime_beside({"autoscaling": {"min": 1, "max": 9}}, parallelism=3), "drivers.all.executors have 2 cores at"),
        (with_executors(count=0), "/drivers/all/executors/count"),
        (with_executors(), "/drivers/all/executors"),
        (with_executors(count=2, autoscaling={"min": 1, "max": 2}), "/drivers/all/executors"),
        (with_executors(autoscaling={"min": 1}), "'max'"),
        (with_executors(autoscaling={"min": 3, "max": 2}), "drivers.all.executors.autoscaling.max is below min"),
        ({"drivers": {"all": {"checkpoint": {"url": "s3://bucket/all"}}}}, "/drivers/all/checkpoint/url"),
        ({"drivers": {"all": {"checkpoint": {"credentials": {"nmae": "store"}}}}}, "'nmae'"),
        ({"drivers": {"more": rendering.ONE | {"lanes": ["retry"]}}}, "lane retry is in drivers.all and in drivers.more"),
        ({"drivers": {"archive": rendering.ONE | {"lanes": ["realtime"]}}}, "'archive'"),
        ({"drivers": {"all": {"lanes": ["realtime"]}}}, "config.source.realtime_pattern is required where a driver has lane"),
        ({"listenAddress": "10.0.0.1"}, "/listenAddress"),
        ({"config": {"spark": {"checkpoint": "s3a://bucket/all"}}}, "'checkpoint'"),
        ({"config": {"metrics": {"port": 9200}}}, "'port'"),
        ({"config": {"kafka": {"librdkafka_options": {"sasl.password": "x"}}}}, "'sasl.password'"),
        ({"config": {"spark": {"conf": {"spark.hadoop.fs.s3a.secret.key": "x"}}}}, "'spark.hadoop.fs.s3a.secret.key'"),
        ({"config": {"kafka": {"librdkafka_options": {"ssl.key.pem": "x"}}}}, "'ssl.key.pem'"),  # of a private key, as the next
        ({"config": {"kafka": {"spark_options": {"ssl.keystore.key": "x"}}}}, "'ssl.keystore.key'"),
        (with_executors(count=2) | {"config": {"spark": {"master": "local[2]"}}}, "config.spark.master is not taken"),
        (with_serve(autoscaling={"enabled": True, "minReplicas": 3, "maxReplicas": 2}), "maxReplicas is below minReplicas"),
        ({"commonLabels": {"app.kubernetes.io/instance": "x"}}, "'app.kubernetes.io/instance'"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
        ({"test": {"endpointUrl": "hooks.example.com"}}, "/test/endpointUrl"),
        ({"secretsRevision": 3}, "/secretsRevision"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_values_is_refused_by_its_name(values, said):
    done = rendering.helm("template", "here", str(rendering.CHART), values=rendering.MINIMAL | values)
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize(
    ("name", "is_accepted"),
    [("a", True), ("a-b", True), ("a" * 21, True), ("a" * 22, False), ("a-", False), ("a" * 20 + "-", False), ("-a", False)],
)
def test_the_name_of_a_driver_is_a_label_of_at_most_21_characters(name, is_accepted):
    """Regression: a name that ends with a hyphen was accepted, and Kubernetes then refused the objects of the driver."""
    values = rendering.MINIMAL | {"drivers": {"all": None, name: rendering.ONE | {"lanes": ["direct"]}}}
    done = rendering.helm("template", "here", str(rendering.CHART), values=values)
    assert (done.returncode == 0, f"'{name}'" in done.stderr) == (is_accepted, not is_accepted)


def test_no_setting_that_is_a_secret_is_accepted_in_the_values():
    """Regression: the chart wrote `config.schema_registry.password` into a ConfigMap."""
    accepted = json.loads((rendering.CHART / "values.schema.json").read_text())["properties"]["config"]["properties"]
    secret = [
        f"{name}.{field}"
        for name, area in settings.areas().items()
        for field, known in area.model_json_schema()["properties"].items()
        if "writeOnly" in json.dumps(known)
    ]
    assert "schema_registry.password" in secret
    for name, field in (path.split(".") for path in secret):
        assert field not in accepted[name]["properties"] or f"{name}.{field}" in chart_reference.PASSED_ON


def levels(schema, path=""):
    """Each mapping that the schema describes, by its path, unless Kubernetes or the user names what stands in it."""
    if schema.get("type") != "object":
        return
    if isinstance(schema.get("additionalProperties"), dict):
        yield from levels(schema["additionalProperties"], f"{path}/*")
        return
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from levels(inner, f"{path}/{name}")


def test_a_typo_is_refused_at_every_level():
    schema = json.loads((rendering.CHART / "values.schema.json").read_text())
    open_ones = {path for path, level in levels(schema) if level.get("additionalProperties") is not False}
    assert open_ones == {"/global"}  # helm's own
