"""deploy/compose runs commands that exist, with settings that are known, by pinned images without rights."""

import re
import tomllib

import pytest
import typer.main
import yaml

from delivery.config import settings
from fanout.cli import main
from tests.support import reading

FOLDER = reading.ROOT / "deploy" / "compose"
DOCUMENT = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES = DOCUMENT["services"]
OURS = {name: service for name, service in SERVICES.items() if "FANOUT_IMAGE" in service["image"]}
COMMAND = typer.main.get_command(main.app)


def test_every_role_has_a_service():
    assert OURS.keys() == {"migrate", "job", "serve", "archive"}


@pytest.mark.parametrize("name", OURS)
def test_every_service_of_ours_runs_a_command_that_exists(name):
    found = COMMAND
    for word in OURS[name]["command"]:
        found = found.commands[word]
    assert found.callback is not None


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_is_pinned_and_replaceable(name):
    variable, default = re.fullmatch(r"\$\{([A-Z]+_IMAGE):-(.+)\}", SERVICES[name]["image"]).groups()
    repository, tag = default.rsplit(":", 1)
    assert variable in {"FANOUT_IMAGE", "KAFKA_IMAGE", "POSTGRES_IMAGE"}
    assert repository == "localhost/fanout" or re.match(r"\d+\.\d+", tag)


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_no_rights_and_a_read_only_root(name):
    service = SERVICES[name]
    assert (service["read_only"], service["cap_drop"], service["security_opt"]) == (True, ["ALL"], ["no-new-privileges:true"])
    assert not {"privileged", "cap_add", "network_mode", "pid", "ipc", "devices"} & service.keys()
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


@pytest.mark.parametrize("name", OURS)
def test_variables_are_settings_and_secrets_come_as_files(name):
    service = OURS[name]
    known = {f"FANOUT_{setting.replace('.', '_').upper()}" for setting in settings.known_names()}
    secret = {"FANOUT_DATABASE_URL", "FANOUT_API_DATABASE_URL", "FANOUT_KEYS_RING"}
    given = service["environment"]
    for variable in given.keys() - {"FANOUT_CONFIG", "SPARK_LOCAL_DIRS"}:
        assert variable.removesuffix("_FILE") in known
        assert variable not in secret
    files = {value for variable, value in given.items() if variable.endswith("_FILE")}
    assert files == {f"/run/secrets/{secret}" for secret in service["secrets"]}


def test_the_api_does_not_get_the_owners_login():
    """Regression: `serve` had the login that owns the tables, although the API logs in by its own."""
    assert SERVICES["serve"]["secrets"] == ["api-database-url", "key-ring"]


def test_every_secret_is_written_by_the_script():
    written = re.findall(r"^write (\S+)", (FOLDER / "make-secrets").read_text(), re.MULTILINE)
    assert DOCUMENT["secrets"] == {name: {"file": f"./secrets/{name}"} for name in written}


def test_what_depends_on_a_service_waits_until_it_is_healthy_or_done():
    for service in SERVICES.values():
        for name, wait in service.get("depends_on", {}).items():
            is_done_once = "healthcheck" not in SERVICES[name]
            assert wait["condition"] == ("service_completed_successfully" if is_done_once else "service_healthy")


def test_the_settings_are_those_that_the_platform_takes():
    taken = settings.Settings.model_validate(tomllib.loads((FOLDER / "fanout.toml").read_text()))
    assert taken.kafka.bootstrap_servers in SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert taken.spark.checkpoint.startswith("/var/lib/fanout/")
    for name, port in (("job", taken.metrics.port), ("archive", taken.metrics.port), ("serve", taken.api.port)):
        assert f"127.0.0.1:{port}/readyz" in SERVICES[name]["healthcheck"]["test"][-1]
