"""What the chart makes is valid for Kubernetes, for every documented combination of values."""

import kubernetes_validate
import pytest

from tests.chart import rendering


@pytest.mark.parametrize("values", rendering.VALUES)
def test_the_chart_is_without_a_fault_for_the_linter(values):
    done = rendering.helm("lint", "--strict", str(rendering.CHART), values=values)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", [rendering.OLDEST, rendering.NEWEST])
@pytest.mark.parametrize("values", rendering.VALUES)
def test_what_it_makes_is_valid_for_kubernetes(values, version):
    for document in rendering.rendered(values):
        if document["kind"] not in rendering.OF_OTHERS:
            kubernetes_validate.validate(document, version, strict=True)


def test_the_template_of_executors_is_valid_for_kubernetes():
    template = rendering.executor_template(rendering.EXECUTORS)
    named = template | {"metadata": template["metadata"] | {"name": "x"}}
    kubernetes_validate.validate(named, rendering.NEWEST, strict=False)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "here-fanout"),
        ({"nameOverride": "hooks"}, "here-hooks"),
        ({"nameOverride": "here"}, "here"),
        ({"fullnameOverride": "events"}, "events"),
    ],
)
def test_all_objects_have_the_name_that_is_chosen(fields, name):
    documents = rendering.rendered(rendering.EVERYTHING | fields)
    assert {
        document["metadata"]["name"] for document in documents if not document["metadata"]["name"].startswith(name)
    } == set()
    assert all(document["metadata"]["labels"]["cost"] == "events" for document in documents)


def test_a_selector_finds_its_own_pods_and_no_others():
    documents = rendering.rendered(rendering.DEVELOPMENT)
    labels = {
        document["metadata"]["name"]: document["spec"]["template"]["metadata"]["labels"].items()
        for document in documents
        if document["kind"] == "Deployment"
    }
    for document in documents:
        if document["kind"] in {"Deployment", "Service", "PodDisruptionBudget"}:
            selector = document["spec"]["selector"]
            wanted = selector.get("matchLabels", selector).items()
            assert {name for name, own in labels.items() if wanted <= own} == {document["metadata"]["name"]}
