"""The settings: their sources, their checks, and the messages about wrong settings."""

import re

import pytest

from delivery import errors
from delivery.config import kafka_clients, plan_builder, schema_settings, settings, settings_loader

CANARY = "canary-5d1f"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / ".fanout").mkdir()
    return tmp_path


def test_precedence_is_environment_then_file_then_local_file(folder):
    local = folder / ".fanout" / "local.toml"
    local.write_text('[kafka]\nbootstrap_servers = "local"\nsasl_username = "local"\n[logs]\nlevel="ERROR"')
    (folder / "fanout.toml").write_text('[kafka]\nbootstrap_servers = "file"\nsasl_username = "file"')
    loaded = settings_loader.read({"FANOUT_KAFKA_BOOTSTRAP_SERVERS": "env"}, root=folder)
    assert (loaded.kafka.bootstrap_servers, loaded.kafka.sasl_username, loaded.logs.level) == ("env", "file", "ERROR")


@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_named_settings_file_is_the_only_one_read(folder, by):
    """A file that `fanout up` had left in the current folder opened the address guard of a production job."""
    (folder / ".fanout" / "local.toml").write_text('[delivery]\nallow_networks = ["127.0.0.0/8"]\nallow_http = true')
    (folder / "fanout.toml").write_text('[logs]\nlevel = "ERROR"')
    named = folder / "production.toml"
    named.write_text('[kafka]\nbootstrap_servers = "kafka:9092"')
    loaded = (
        settings_loader.read({}, named, root=folder)
        if by == "option"
        else settings_loader.read({"FANOUT_CONFIG": str(named)}, root=folder)
    )
    assert loaded == settings.Settings(kafka=settings.KafkaSettings(bootstrap_servers="kafka:9092"))


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"FANOUT_KAFKA_BOOTSTRAP_SERVER": "x"}, "did you mean kafka.bootstrap_servers?"),
        ({"FANOUT_KAFAK_X": "x"}, "did you mean kafka?"),
        ({"FANOUT_DELIVERY_MAX_ATTEMPTS": "many"}, "delivery.max_attempts (FANOUT_DELIVERY_MAX_ATTEMPTS)"),
        ({"FANOUT_DELIVERY_MAX_ATTEMPTS": "0"}, "must be more than 0"),
        ({"FANOUT_KAFKA_SECURITY_PROTOCOL": "TLS"}, "kafka.security_protocol"),
        ({"FANOUT_SOURCE_TENANT_OF_TOPIC": "("}, "source.tenant_of_topic (FANOUT_SOURCE_TENANT_OF_TOPIC)"),
        ({"FANOUT_SOURCE_TENANT_OF_TOPIC": "events\\..+"}, "must have exactly one group: the tenant's id"),
        ({"FANOUT_CONFIG": "/nowhere.toml"}, "there is no settings file /nowhere.toml"),
    ],
)
def test_an_error_names_the_wrong_setting_and_the_right_one(folder, environ, said):
    with pytest.raises(errors.SettingsError) as refused:
        settings_loader.read(environ, root=folder)
    assert said in str(refused.value)


def test_an_area_that_is_no_table_is_named_beside_a_field_of_the_environment(folder):
    """Regression: the command ended with the traceback of an AttributeError."""
    (folder / "fanout.toml").write_text('kafka = "x"')
    with pytest.raises(errors.SettingsError, match="kafka"):
        settings_loader.read({"FANOUT_KAFKA_BOOTSTRAP_SERVERS": "h:1"}, root=folder)


def test_one_error_names_every_wrong_setting(folder):
    with pytest.raises(errors.SettingsError) as refused:
        settings_loader.read({"FANOUT_LOGS_LEVEL": "LOUD", "FANOUT_DELIVERY_MAX_ATTEMPTS": "0"}, root=folder)
    assert len(str(refused.value).splitlines()) == 2


def test_a_variable_may_name_a_file_with_the_settings_value(folder):
    (folder / "mounted").write_text(f"postgresql://fanout:{CANARY}@db/fanout\n")
    config = settings_loader.read({"FANOUT_DATABASE_URL_FILE": str(folder / "mounted")}, root=folder)
    assert config.database.url.get_secret_value() == f"postgresql://fanout:{CANARY}@db/fanout"


def test_a_setting_whose_own_name_ends_in_file_is_a_plain_value(folder):
    assert settings_loader.read({"FANOUT_KAFKA_SSL_CA_FILE": "no such file"}, root=folder).kafka.ssl_ca_file == "no such file"


@pytest.mark.parametrize(("held", "said"), [(None, "No such file or directory"), (b"\xff", "it is not text")])
def test_an_unreadable_file_of_a_value_is_named(folder, held, said):
    if held is not None:
        (folder / "mounted").write_bytes(held)
    with pytest.raises(errors.SettingsError, match=f"FANOUT_DATABASE_URL_FILE names .*mounted, which cannot be read: {said}"):
        settings_loader.read({"FANOUT_DATABASE_URL_FILE": str(folder / "mounted")}, root=folder)


def test_a_settings_file_that_is_no_text_is_named(folder):
    """Regression: such a file ended the command with a traceback."""
    (folder / "fanout.toml").write_bytes(b"\xff")
    with pytest.raises(errors.SettingsError, match=r"the settings file .*fanout\.toml cannot be read: it is not text in UTF-8"):
        settings_loader.read({}, root=folder)


def test_a_settings_file_that_cannot_even_be_looked_for_is_named(folder):
    """Regression: a file in a folder that the login may not search ended the command with a traceback."""
    with pytest.raises(errors.SettingsError, match=r"the settings file .* cannot be read: File name too long"):
        settings_loader.read({}, folder / ("x" * 5000), root=folder)


@pytest.mark.parametrize("content", ["", "\n"])
def test_an_empty_file_of_a_value_is_named(folder, content):
    (folder / "mounted").write_text(content)
    with pytest.raises(errors.SettingsError, match=r"FANOUT_KEYS_RING_FILE names .*mounted, which is empty"):
        settings_loader.read({"FANOUT_KEYS_RING_FILE": str(folder / "mounted")}, root=folder)


def test_a_key_without_its_id_is_refused_unquoted(folder):
    """Regression: `fanout config` showed the key, because it looks like an id without a key."""
    with pytest.raises(errors.SettingsError, match=r"keys\.ring.* write each key as id1=base64") as refused:
        settings_loader.read({"FANOUT_KEYS_RING": "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="}, root=folder)
    assert "a2tra2tr" not in str(refused.value)


def test_a_setting_given_by_value_and_by_file_is_refused_unquoted(folder):
    (folder / "mounted").write_text(CANARY)
    environ = {"FANOUT_DATABASE_URL_FILE": str(folder / "mounted"), "FANOUT_DATABASE_URL": CANARY}
    with pytest.raises(errors.SettingsError, match="keep one of them") as raised:
        settings_loader.read(environ, root=folder)
    assert CANARY not in str(raised.value)


def test_no_repr_and_no_error_shows_a_secret(folder):
    environ = {
        "FANOUT_DATABASE_URL": "postgresql://u:hunter2@h/d",
        "FANOUT_KAFKA_SASL_PASSWORD": "hunter2",
        "FANOUT_KEYS_RING": "a=hunter2",
    }
    assert "hunter2" not in repr(settings_loader.read(environ, root=folder))
    with pytest.raises(errors.SettingsError) as refused:
        settings_loader.read(environ | {"FANOUT_KEYS_RINGS": "hunter2"}, root=folder)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "number"), [("hunter2", 1), ("a=b, hunter2", 2), ("a=b,,=hunter2", 3), ("a=hunter1,hunter2", 2)]
)
def test_a_part_of_a_table_that_is_no_pair_is_an_error(folder, given, number):
    """Regression: the part was dropped, so that FANOUT_KEYS_RING with a key without its id gave an empty key ring."""
    with pytest.raises(errors.SettingsError, match=rf"keys\.ring \(FANOUT_KEYS_RING\): part {number} has no name") as refused:
        settings_loader.read({"FANOUT_KEYS_RING": given}, root=folder)
    assert "hunter" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"FANOUT_SOURCE_STARTING_OFFSETS": "ealiest"}, "must be one of earliest, latest; did you mean earliest? Nothing"),
        ({"FANOUT_SOURCE_INVALID_TIME": "dropped"}, "must be one of (empty), passed, rejected"),
        ({"FANOUT_METRICS_PORT": "eighty"}, "must be a whole number, but is other text. Nothing was started"),
        ({"FANOUT_METRICS_PORT": "99999"}, "must be at most 65535"),
        # Regression: infinity was accepted, and ended the thread that measures the lag.
        ({"FANOUT_METRICS_LAG_INTERVAL_S": "inf"}, "must be a finite number, not inf or nan"),
        # Regression: Postgres then refused each connection, or had no limit at all.
        ({"FANOUT_DATABASE_STATEMENT_TIMEOUT_S": "2147484"}, "must be at most 2147483"),
        ({"FANOUT_DATABASE_STATEMENT_TIMEOUT_S": "0.0005"}, "must be at least 0.001"),
        # Regression: the job kept its progress in folders of the file system's root.
        ({"FANOUT_SPARK_CHECKPOINT": ""}, "is empty: name a folder such as .fanout/checkpoint, or a URL"),
        ({"FANOUT_SPARK_CHECKPOINT": " "}, "is empty: name a folder such as .fanout/checkpoint, or a URL"),
        ({"FANOUT_API_PUBLIC_URL": "https://a.example/"}, "must be a URL with http:// or https:// that does not end in /"),
        ({"FANOUT_API_PUBLISHER_SOURCES": "/tenant/"}, "must have {tenant} once, and a / or # after it, as in /{tenant}/"),
        ({"FANOUT_OIDC_ISSUER": "http://login.example.com"}, "must be an https:// URL, or an http:// URL of this machine"),
        ({"FANOUT_OIDC_SCOPES": "admins=root"}, "must be one of operator, executor, publisher"),
        ({"FANOUT_SCHEMA_REGISTRY_URL": "https://u:p@registry"}, "must be URLs with http:// or https://, separated by commas"),
    ],
)
def test_a_wrong_value_is_explained_without_patterns_and_types(folder, given, problem):
    """Regression: the message was pydantic's, such as `String should match pattern '^(earliest|latest)$'`."""
    with pytest.raises(errors.SettingsError, match=re.escape(problem)) as refused:
        settings_loader.read(given, root=folder)
    assert str(refused.value).startswith("setting ")


def test_the_file_or_variable_of_a_wrong_value_is_named(folder):
    (folder / ".fanout" / "local.toml").write_text('[metrics]\nport = "a"\nhost = 1\n[api]\nport = "a"\ncolour = 1\n')
    (folder / "fanout.toml").write_text('retry = 1\n[metrics]\nport = "b"\n[spark]\nparallelism = "b"\n')
    (folder / "mounted").write_text("d")
    given = {
        "FANOUT_SPARK_PARALLELISM": "c",
        "FANOUT_METRICS_LAG_INTERVAL_S_FILE": str(folder / "mounted"),
        "FANOUT_logs_level": "e",
        "FANOUT_NONE_SUCH": "f",
        "FANOUT_LOGS_FORMAT_FILE": str(folder / "mounted"),
    }
    with pytest.raises(errors.SettingsError) as refused:
        settings_loader.read(given, root=folder)
    sources = dict(re.findall(r"setting (\S+) \((\S+)\)", str(refused.value)))
    assert sources == {
        "metrics.port": str(folder / "fanout.toml"),
        "metrics.host": str(folder / ".fanout" / "local.toml"),
        "api.port": str(folder / ".fanout" / "local.toml"),
        "api.colour": str(folder / ".fanout" / "local.toml"),
        "spark.parallelism": "FANOUT_SPARK_PARALLELISM",
        "metrics.lag_interval_s": "FANOUT_METRICS_LAG_INTERVAL_S_FILE",
        "logs.level": "FANOUT_logs_level",
        "retry": str(folder / "fanout.toml"),
        "none": "FANOUT_NONE_SUCH",
        "logs.format": "FANOUT_LOGS_FORMAT_FILE",
    }


def test_the_variable_of_compose_for_the_image_is_no_setting(folder):
    """Regression: in a shell that exports it, each command ended with `setting image is not known`."""
    assert settings_loader.read({"FANOUT_IMAGE": "registry.example.com/fanout:1"}, root=folder) == settings.Settings()


def test_no_setting_is_refused_by_a_pattern_of_pydantic():
    """Pydantic reports a pattern by its text. `setting_types.Matching` has a message."""
    assert not [
        f"{area}.{name}"
        for area, model in settings.areas().items()
        for name, field in model.model_fields.items()
        if any(getattr(part, "pattern", None) for part in field.metadata)
    ]


def test_a_table_in_the_environment_may_have_empty_parts_and_equals_signs(folder):
    loaded = settings_loader.read({"FANOUT_SPARK_CONF": " a=b=, c= ,", "FANOUT_KEYS_RING": ""}, root=folder)
    assert {name: value.get_secret_value() for name, value in loaded.spark.conf.items()} == {"a": "b=", "c": ""}
    assert loaded.keys.ring == {}


def test_every_setting_has_a_docstring():
    assert all(settings.meaning(name) for name in settings.known_names())


def test_both_kafka_clients_get_the_settings_of_sasl_and_tls():
    kafka = settings.KafkaSettings(
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="ann",
        sasl_password='p"w\\',
        ssl_ca_file="/ca.pem",
        spark_options={"client.rack": "a"},
        librdkafka_options={"client.rack": "b"},
    )
    assert kafka_clients.for_spark(kafka) == {
        "kafka.bootstrap.servers": "127.0.0.1:9092",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="ann" password="p\\"w\\\\";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.client.rack": "a",
    }
    command = kafka_clients.for_librdkafka(kafka)
    assert (command["sasl.password"], command["ssl.ca.location"], command["client.rack"]) == ('p"w\\', "/ca.pem", "b")


def test_the_guards_exceptions_for_development_are_listed():
    assert plan_builder.opened_for_development(settings.DeliverySettings()) == ""
    opened = settings.DeliverySettings(allow_networks=("127.0.0.0/8",), allow_http=True, allow_ports=())
    assert plan_builder.opened_for_development(opened) == "networks 127.0.0.0/8, plain http, any port"


def test_an_area_of_two_words_is_read_from_the_environment(folder):
    secret = folder / "password"
    secret.write_text("canary\n")
    environ = {
        "FANOUT_SCHEMA_REGISTRY_URL": "https://a.example.com, https://b.example.com:8081",
        "FANOUT_SCHEMA_REGISTRY_TOPIC_PATTERN": "events[.].+",
        "FANOUT_SCHEMA_REGISTRY_USERNAME": "fanout",
        "FANOUT_SCHEMA_REGISTRY_PASSWORD_FILE": str(secret),
    }
    loaded = settings_loader.read(environ, root=folder)
    formats = plan_builder.formats_of(loaded.schema_registry)
    assert formats.topic_pattern == "events[.].+"
    assert (formats.access.username, formats.access.password.reveal()) == ("fanout", b"canary")
    assert plan_builder.formats_of(schema_settings.SchemaRegistrySettings()) is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"topic_pattern": "events[.].+"}, "needs schema_registry.url"),
        ({"topic_pattern": "(", "url": "http://a"}, "topic_pattern"),
        ({"url": "https://user:canary@a.example.com"}, "schema_registry.url"),
        ({"url": "ftp://a.example.com"}, "schema_registry.url"),
    ],
)
def test_a_schema_registry_that_cannot_be_asked_is_refused(folder, wrong, said):
    lines = "\n".join(f"{name} = '{value}'" for name, value in wrong.items())
    (folder / "fanout.toml").write_text(f"[schema_registry]\n{lines}")
    with pytest.raises(errors.SettingsError) as refused:
        settings_loader.read({}, root=folder)
    assert said in str(refused.value)
    assert "canary" not in str(refused.value)


def test_the_provider_of_tokens_is_read_from_the_environment(folder):
    environ = {
        "FANOUT_OIDC_ISSUER": "https://login.example.com/realms/ops",
        "FANOUT_OIDC_AUDIENCE": "fanout",
        "FANOUT_OIDC_SCOPES": "admins=operator, ci=publisher",
    }
    loaded = settings_loader.read(environ, root=folder)
    assert loaded.oidc.scopes == {"admins": "operator", "ci": "publisher"}
    assert loaded.oidc.is_on
    assert not settings_loader.read({}, root=folder).oidc.is_on


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"FANOUT_OIDC_AUDIENCE": ""}, "oidc.audience"),
        ({"FANOUT_OIDC_SCOPES": ""}, "oidc.scopes"),
        ({"FANOUT_OIDC_SCOPES": "admins=customer_admin"}, "oidc.scopes.admins"),
        ({"FANOUT_OIDC_ISSUER": "http://login.example.com"}, "oidc.issuer"),
        ({"FANOUT_OIDC_ISSUER": "http://127.0.0.1.example.com"}, "oidc.issuer"),
        ({"FANOUT_OIDC_ISSUER": "https://user:canary@login.example.com"}, "oidc.issuer"),
        ({"FANOUT_OIDC_ISSUER": "https://login.example.com?tenant=1"}, "oidc.issuer"),
        ({"FANOUT_OIDC_LEEWAY_S": "3600"}, "oidc.leeway_s"),
    ],
)
def test_a_provider_that_would_not_be_safe_is_refused(folder, wrong, said):
    right = {
        "FANOUT_OIDC_ISSUER": "http://localhost:8080/realms/ops",
        "FANOUT_OIDC_AUDIENCE": "fanout",
        "FANOUT_OIDC_SCOPES": "admins=operator",
    }
    assert settings_loader.read(right, root=folder).oidc.is_on
    with pytest.raises(errors.SettingsError) as refused:
        settings_loader.read(right | wrong, root=folder)
    assert said in str(refused.value)
    assert "canary" not in str(refused.value)
