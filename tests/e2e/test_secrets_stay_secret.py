"""A job with a recognisable secret in every place for one, watched wherever somebody could read it."""

import base64
import itertools
import urllib.error
import urllib.request
import uuid

import orjson
import pytest

from delivery.config import kafka_clients, settings
from delivery.stages.kafka import topics
from fanout.local import kafka_server as local_kafka
from tests.e2e.conftest import JOB_TIMEOUT_S, SECRET, assert_eventually
from tests.support import certificates
from tests.support.logins import login

pytestmark = pytest.mark.e2e


NAMES = ("sasl", "wrong", "option", "client-password", "conf", "database", "bearer", "path")
TALKATIVE = """
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n%ex
logger.spark.name = org.apache.spark
logger.spark.level = info
logger.kafka.name = org.apache.kafka
logger.kafka.level = info
"""


def canary(name):
    return f"canary-{name}-{uuid.uuid4().hex}"


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as answer:  # a lane that is not ready yet says why, and that is looked through as well
        return answer.read().decode()


def broker_tls(folder):
    """Certificates for a broker that demands a client certificate of the same authority."""
    (folder / "authority.pem").write_text(certificates.authority().pem)
    own = certificates.issue("broker", issuer=certificates.authority())
    return local_kafka.BrokerTls(authority=folder / "authority.pem", keystore=certificates.keystore(folder, own))


def test_no_secret_shows_in_logs_metrics_sparks_ui_its_event_log_or_errors(platform, jars, tmp_path):
    secrets = {name: canary(name) for name in NAMES}
    platform.keys["ring"]["test"] = base64.b64encode(b"canary-key-ring-0123456789abcdef").decode()
    secrets |= {"ring": platform.keys["ring"]["test"], "signing": SECRET.removeprefix("whsec_")}
    client = certificates.issue("client", issuer=certificates.authority())
    secrets["key"] = "".join(client.key.splitlines()[1:-1])[-40:]
    tls = broker_tls(tmp_path)
    broker = local_kafka.EmbeddedKafka(tmp_path / "sasl", libraries=jars, sasl_users={"fanout": secrets["sasl"]}, tls=tls)
    broker.start()
    try:
        platform._kafka = broker
        platform._database = platform._database.replace(":@", f":{secrets['database']}@")
        assert secrets["database"] in platform._database
        kafka = login(broker, "fanout", secrets["sasl"]) | {
            "ssl_ca_file": str(tls.authority),
            "ssl_keystore_file": str(certificates.keystore(tmp_path, client)),
        }
        usual = platform.settings
        platform.settings = lambda **overrides: usual(**{"kafka": kafka} | overrides)
        bearer = {"kind": "bearer", "secret": secrets["bearer"]}
        platform.register([{}], auth=bearer, url=f"{platform.receiver.url}/ep1/{secrets['path']}")
        (tmp_path / "events").mkdir()
        (tmp_path / "log4j2.properties").write_text(TALKATIVE)
        ui, own = local_kafka.free_port(), local_kafka.free_port()
        # A dead letter does not fit, so that the job ends with an error that Spark tells at length.
        topics.ensure(platform.config.kafka, [platform.config.delivery.dead_letter_topic], 1, {"max.message.bytes": "300"})
        job = platform.start(
            kafka={
                **kafka,
                # Java's client passes unknown options to plug-ins. It refuses a password for a key that has none.
                "spark_options": {"plugin.password": secrets["option"]},
                "librdkafka_options": {"ssl.key.password": secrets["client-password"]},
            },
            logs={"format": "json", "level": "DEBUG", "attempt_sample": 1.0},
            metrics={"port": own},
            spark={
                **usual()["spark"],
                "master": "local[2]",
                "ui": True,
                "conf": {
                    "spark.ui.port": str(ui),
                    "spark.driver.extraJavaOptions": f"-Dlog4j.configurationFile=file://{tmp_path}/log4j2.properties",
                    "spark.eventLog.enabled": "true",
                    "spark.eventLog.compress": "false",
                    "spark.eventLog.dir": f"file://{tmp_path}/events",
                    "spark.hadoop.fs.s3a.secret.key": secrets["conf"],
                    # Each event of Spark's scheduler counts as slow, and its text has all settings: it must not be logged.
                    "spark.scheduler.listenerbus.logSlowEvent.threshold": "1us",
                },
            },
        )
        platform.publish(1)
        assert_eventually(lambda: [request.path for request in list(platform.received)], bool)
        assert_eventually(lambda: platform.log(whole=True), lambda log: "micro-batch committed" in log)
        [application] = orjson.loads(get(ui, "/api/v1/applications"))
        about = f"/api/v1/applications/{application['id']}"
        published = {path: get(ui, about + path) for path in ("/environment", "/jobs", "/executors")}
        published["/sql"] = get(ui, f"{about}/sql?details=true&planDescription=true&length=1000")
        published |= {path: get(own, path) for path in ("/metrics", "/readyz", "/healthz")}

        for wrong, said in ({"sasl_password": secrets["wrong"]}, "Authentication failed"), ({"ssl_ca_file": ""}, "certificate"):
            published[said] = kafka_clients.connection_failure(settings.KafkaSettings.model_validate(kafka | wrong))
            assert said in published[said]

        platform.statuses[f"ep1/{secrets['path']}"] = 500
        platform.publish(1, first=1)
        assert job.wait(JOB_TIMEOUT_S) == 1
    finally:
        broker.kill()

    published["log"] = platform.log(whole=True)
    published["event log"] = "".join(path.read_text() for path in (tmp_path / "events").rglob("*") if path.is_file())
    # The texts to search hold the plans with Kafka's options, Spark's own configuration and the failure.
    assert "spark.redaction.regex" in published["/environment"]
    assert "SparkListenerSQLExecutionStart" in published["event log"]
    assert "sasl.jaas.config" in published["event log"] + published["log"]
    assert "INFO ConsumerConfig" in published["log"]
    assert "KafkaUnavailable" in published["log"]
    assert '"event":"delivery.attempted"' in published["log"]
    found = [
        (place, name)
        for (place, text), (name, secret) in itertools.product(published.items(), secrets.items())
        if secret in text
    ]
    assert not found
