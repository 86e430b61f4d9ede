"""The rendered chart is valid for Kubernetes, for every documented combination of values."""

import kubernetes_validate
import pytest
import yaml

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


@pytest.mark.parametrize("values", rendering.VALUES)
def test_a_release_with_a_number_as_its_name_is_valid(values):
    """Regression: a label of the release's name was a number, which Kubernetes refuses."""
    for document in rendering.rendered(values, release="123"):
        if document["kind"] not in rendering.OF_OTHERS:
            kubernetes_validate.validate(document, rendering.NEWEST, strict=True)


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


@pytest.mark.parametrize("values", rendering.PRODUCTION)
def test_two_releases_of_a_namespace_share_no_object_and_no_pod(values):
    here, there = rendering.rendered(values), rendering.rendered(values, release="there")
    names = [{(found["kind"], found["metadata"]["name"]) for found in release} for release in (here, there)]
    assert not names[0] & names[1]
    selectors = [wanted for wanted in map(selector_of, here) if wanted]
    labels = [found["spec"]["template"]["metadata"]["labels"].items() for found in there if found["kind"] == "Deployment"]
    assert selectors
    assert labels
    assert [wanted for wanted in selectors if any(wanted <= own for own in labels)] == []


def selector_of(found):
    """Return the labels by which an object selects pods; None: it selects none."""
    spec = found.get("spec", {})
    selector = spec.get("selector") or spec.get("podSelector")
    return selector and selector.get("matchLabels", selector).items()


def test_names_of_a_long_release_fit_and_stay_apart():
    """Kubernetes takes 63 characters for a Service, and for a label with the name of a Job. Helm takes 53 for a release."""
    names = []
    for last in "ab":
        name = "a-release-of-the-longest-name-that-helm-lets-you-tak" + last
        done = rendering.helm("template", name, str(rendering.CHART), values=rendering.COMBINATIONS["everything"])
        assert done.returncode == 0, done.stderr
        documents = [document for document in yaml.safe_load_all(done.stdout) if document]
        names.append({(document["kind"], document["metadata"]["name"]) for document in documents})
        assert {name for _, name in names[-1] if len(name) > 63} == set()
    assert len(names[0]) > 10
    assert not names[0] & names[1]
