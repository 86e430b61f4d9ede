"""Files with certificates: all pods have them, and a setting names no other file."""

import pytest

from delivery.config import settings
from tests.chart import rendering

FOLDER = "/etc/certificates"
SETTINGS = sorted(name.split(".") for name in settings.known_names() if name.endswith("_file"))


def with_file(area, field, file, **certificates):
    return rendering.MINIMAL | {"config": {area: {field: file}}, "certificates": certificates}


def sources_of(pod):
    """Return what is mounted for reading below FOLDER in a pod; None if nothing is."""
    [container] = pod["containers"]
    for mount in container["volumeMounts"]:
        if mount["mountPath"] == FOLDER:
            assert mount["readOnly"] is True
            [volume] = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
            return volume["projected"]["sources"]
    return None


@pytest.mark.parametrize(
    ("certificates", "sources"),
    [
        ({}, None),
        ({"configMap": "authorities"}, [{"configMap": {"name": "authorities"}}]),
        ({"secret": "client"}, [{"secret": {"name": "client"}}]),
        (
            {"configMap": "authorities", "secret": "client"},
            [{"configMap": {"name": "authorities"}}, {"secret": {"name": "client"}}],
        ),
    ],
)
def test_all_pods_have_the_files_of_certificates(certificates, sources):
    """Regression: no pod could mount a certificate, so that `kafka.ssl_ca_file` named a file which did not exist."""
    values = rendering.EXECUTORS | {"certificates": certificates, "archive": {"enabled": True}, "serve": {"enabled": True}}
    values |= {"secrets": rendering.EVERYTHING["secrets"]}
    found = rendering.pods(rendering.rendered(values)).values()
    assert {component for component, _ in found} == {"driver", "serve", "archive", "migrate", "test"}
    for pod in [*(pod for _, pod in found), rendering.executor_template(values)["spec"]]:
        assert sources_of(pod) == sources


@pytest.mark.parametrize(("area", "field"), SETTINGS)
@pytest.mark.parametrize(
    ("file", "certificates"),
    [
        ("/var/lib/fanout/ca.crt", {"configMap": "authorities"}),
        ("/etc/certificates.crt", {"configMap": "authorities"}),
        (f"{FOLDER}/ca.crt", {}),
    ],
)
def test_a_file_that_no_pod_has_is_refused(area, field, file, certificates):
    """Regression: the chart took any path, and the pods ended at their start because the file did not exist."""
    done = rendering.helm("template", "here", str(rendering.CHART), values=with_file(area, field, file, **certificates))
    assert done.returncode != 0
    assert f"config.{area}.{field}: no pod has the file {file}. Put it into a ConfigMap or a Secret" in done.stderr


@pytest.mark.parametrize(
    ("file", "certificates"),
    [
        (f"{FOLDER}/ca.crt", {"configMap": "authorities"}),
        (f"{FOLDER}/tls.pem", {"secret": "client"}),
        ("/etc/ssl/certs/ca-certificates.crt", {}),
        ("", {}),
    ],
)
def test_a_file_of_certificates_or_of_the_image_is_taken(file, certificates):
    for area, field in SETTINGS:
        written = rendering.settings_of(rendering.rendered(with_file(area, field, file, **certificates)))
        assert f'{field} = "{file}"' in written
