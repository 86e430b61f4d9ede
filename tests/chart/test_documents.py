"""README, schema, versions and golden files agree with the chart."""

import json
import os
import re
import tomllib

import pytest
import yaml

from delivery.config import settings
from fanout.documents import chart_reference
from tests.chart import rendering
from tests.support import reading

CREATE_A_KEY = "exec deployment/here-fanout-all -- fanout --config /etc/fanout/fanout.toml api-keys create"
"""In the pod of a driver: the API's pods do not have the login that may create keys."""
GOLDEN = rendering.ROOT / "tests" / "chart" / "golden"


def test_the_readme_has_every_value_with_its_default_and_meaning():
    assert (rendering.CHART / "README.md").read_text() == chart_reference.readme(rendering.CHART), "run `make docs`"


def test_every_value_is_explained_where_it_stands():
    found = chart_reference.values((rendering.CHART / "values.yaml").read_text())
    unexplained = [setting.path for setting in found if not setting.meaning]
    assert [path for path in unexplained if not path.endswith((".resources.requests", ".resources.limits"))] == []


def test_the_schema_knows_every_value_and_takes_its_default():
    schema = json.loads((rendering.CHART / "values.schema.json").read_text())
    values = yaml.safe_load((rendering.CHART / "values.yaml").read_text())
    assert set(values) | {"global"} == set(schema["properties"])
    done = rendering.helm("template", "here", str(rendering.CHART), values=values | rendering.MINIMAL)
    assert done.returncode == 0, done.stderr


def test_the_schema_of_the_settings_is_the_settings():
    assert (rendering.CHART / "values.schema.json").read_text() == chart_reference.schema(rendering.CHART), "run `make docs`"


def test_the_schema_knows_every_setting_but_those_of_the_chart():
    schema = json.loads((rendering.CHART / "values.schema.json").read_text())["properties"]["config"]["properties"]
    known = {f"{area}.{field}" for area, fields in schema.items() for field in fields["properties"]}
    assert known == set(settings.known_names()) - set(chart_reference.OF_THE_CHART)


def test_the_package_the_image_and_the_chart_have_one_version():
    version = tomllib.loads((rendering.ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((rendering.CHART / "Chart.yaml").read_text())
    containerfile = (rendering.ROOT / "deploy/image/Containerfile").read_text()
    assert chart["appVersion"] == version
    assert set(re.findall(r"^ARG VERSION=(.*)$", containerfile, re.MULTILINE)) == {version}
    images = {image["name"]: image["image"] for image in yaml.safe_load(chart["annotations"]["artifacthub.io/images"])}
    values = yaml.safe_load((rendering.CHART / "values.yaml").read_text())
    assert images == {
        "fanout": f"{values['image']['repository']}:{version}",
        "kafka": values["development"]["kafka"]["image"],
        "postgres": values["development"]["postgres"]["image"],
    }


def test_the_changes_of_the_chart_are_in_the_form_of_artifact_hub():
    chart = yaml.safe_load((rendering.CHART / "Chart.yaml").read_text())
    for change in yaml.safe_load(chart["annotations"]["artifacthub.io/changes"]):
        assert change["kind"] in {"added", "changed", "deprecated", "removed", "fixed", "security"}
        assert change["description"]


def golden(values):
    """Return the rendered chart without the values that change with every version and setting."""
    text = rendering.text(values | {"dashboard": {"enabled": False}})  # the dashboard is a file of its own
    text = re.sub(r"(checksum/\w+): \w{64}", r"\1: …", text)
    return re.sub(r"^ *(helm\.sh/chart|app\.kubernetes\.io/(version|managed-by)): .*\n", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", rendering.COMBINATIONS)
def test_what_helm_makes_is_the_golden_file(name):
    """`GOLDEN=write make test-chart` writes the files anew: read the difference before you commit it."""
    made, path = golden(rendering.COMBINATIONS[name]), GOLDEN / f"{name}.yaml"
    if os.environ.get("GOLDEN") == "write":
        path.write_text(made)
    assert made == path.read_text()


def notes(values):
    done = rendering.helm("install", "here", str(rendering.CHART), "--dry-run=client", values=values)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:")[2]


@pytest.mark.parametrize(
    ("values", "said", "unsaid"),
    [
        (rendering.MINIMAL, ["--set test.endpointUrl=https://", "serve.enabled=true"], ["api-keys", "FOR TRIALS"]),
        (
            rendering.EVERYTHING | {"serve": rendering.EVERYTHING["serve"] | {"publishing": True}},
            ["with the jobs' login to Kafka"],
            ["The HTTP API is off"],
        ),
        (
            rendering.EVERYTHING,
            ["helm test here", "curl https://api.example.com/"],
            ["port-forward", "guard is closed", "login to Kafka"],
        ),
        (
            rendering.DEVELOPMENT,
            ["helm test here", "port-forward service/here-fanout-serve", "FOR TRIALS", CREATE_A_KEY],
            ["guard is closed"],
        ),
        (rendering.APART, ["deployment/here-fanout-fast", "deployment/here-fanout-slow"], ["here-fanout-all", "LANE realtime"]),
        (rendering.REALTIME_APART, ["NO DRIVER OF THIS RELEASE HAS LANE realtime"], []),
    ],
)
def test_the_notes_have_the_next_command_for_what_was_chosen(values, said, unsaid):
    shown = notes(values)
    assert [text for text in said if text not in shown] == []
    assert [text for text in unsaid if text in shown] == []


def test_the_chart_takes_the_examples_of_its_readme():
    mine, executors, store = map(yaml.safe_load, reading.blocks("deploy/helm/fanout/README.md", "yaml"))
    assert rendering.rendered(mine)
    assert rendering.executor_template(mine | executors)
    assert rendering.rendered(mine | store | {"config": mine["config"] | store["config"]})


@pytest.mark.parametrize("rendered", ["minimal", "executors", "on-a-store"])
def test_the_documented_patch_lets_the_pod_of_a_driver_sleep(rendered):
    """Regression: no document said how to run `fanout accept-loss` on Kubernetes. The chart must not change below the patch."""
    [block] = [text for text in reading.blocks("docs/operations.md", "sh") if " patch deployment fanout-all " in text]
    objects = yaml.safe_load_all((GOLDEN / f"{rendered}.yaml").read_text())
    [driver] = [each for each in objects if each["kind"] == "Deployment" and each["metadata"]["name"] == "here-fanout-all"]
    assert driver["spec"]["strategy"] == {"type": "Recreate"}
    [container] = driver["spec"]["template"]["spec"]["containers"]
    for change in json.loads(re.search(r"--patch '(.*?)'", block, re.DOTALL)[1]):
        folder, _, name = change["path"].rpartition("/")
        assert folder == "/spec/template/spec/containers/0"
        assert (name in container) is (change["op"] == "remove"), name
        container[name] = change.get("value")
    assert {name for name in container if name.endswith("Probe") and container[name]} == set()
    assert container["args"] is None
    assert f"--config {container['volumeMounts'][0]['mountPath']}/fanout.toml accept-loss" in block
