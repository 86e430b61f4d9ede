"""The Standard Webhooks libraries of other languages verify signed requests and refuse changed ones.

Nothing else here needs Node or Go: where one is not installed, its library is not asked. Java's runs in a JVM of its own.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path
from unittest import mock

import orjson
import py4j.java_gateway
import py4j.protocol
import pyspark
import pytest

from delivery.registry_model import SignatureScheme, SigningKey
from delivery.secret import Secret
from delivery.webhooks.sending import signing
from fanout.jvm import java

pytestmark = [pytest.mark.integration, pytest.mark.slow]
LIBRARIES = Path(__file__).parent / "libraries"
JAVA_LIBRARY = ("com.standardwebhooks", "standardwebhooks", "1.2.0")
FETCH_TIMEOUT_S = 200
KEY, OTHER = signing.generate(), signing.generate()
BODY = '{"id":"1","name":"Zoë 🚚"}'


def case(*keys, body=BODY, at=None, **changed):
    """Return the request that a receiver with `KEY` gets, with headers that were changed on the way."""
    at = round(time.time()) if at is None else at
    signed = signing.sign(keys, "msg_1", at, BODY.encode())
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(at), "webhook-signature": signed}
    return {"secret": signing.to_text(KEY), "body": body, "headers": headers | changed}


def cases():
    """Everything that is asked, by what it is: the cases, and what every library must say."""
    cut = case(KEY)["headers"]["webhook-signature"][:-3]
    asymmetric = SigningKey(secret=Secret(bytes(range(32))), scheme=SignatureScheme.ED25519)
    return {
        "as it was sent": (case(KEY), "verified"),
        "the old key of a rotation": (case(OTHER, KEY), "verified"),
        "the new key of a rotation": (case(KEY, OTHER), "verified"),
        "an ed25519 signature beside it": (case(asymmetric, KEY), "verified"),
        "an ed25519 signature alone": (case(asymmetric), "refused"),
        "another key": (case(OTHER), "refused"),
        "another body": (case(KEY, body=BODY.replace("1", "2")), "refused"),
        "other spaces in the body": (case(KEY, body=BODY.replace(":", ": ")), "refused"),
        "another id": (case(KEY, **{"webhook-id": "msg_2"}), "refused"),
        "another time": (case(KEY, **{"webhook-timestamp": str(round(time.time()) + 100)}), "refused"),
        "an hour old": (case(KEY, at=round(time.time()) - 3600), "refused"),
        "an hour ahead": (case(KEY, at=round(time.time()) + 3600), "refused"),
        "a cut signature": (case(KEY, **{"webhook-signature": cut}), "refused"),
        "a signature that is not ASCII": (case(KEY, **{"webhook-signature": "v1,ä" + cut[4:]}), "refused"),
        "no signature": (case(KEY, **{"webhook-signature": ""}), "refused"),
    }


def said_by(command, folder, asked, **environment):
    lines = b"\n".join(map(orjson.dumps, asked))
    environment = os.environ | environment
    done = subprocess.run(
        command, cwd=folder, input=lines, capture_output=True, env=environment, timeout=FETCH_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split()


def in_javascript(asked, folder):
    for name in ("package.json", "package-lock.json", "verify.mjs"):
        shutil.copy(LIBRARIES / "javascript" / name, folder)
    install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    subprocess.run(install, cwd=folder, capture_output=True, timeout=FETCH_TIMEOUT_S, check=True)
    return said_by(["node", "verify.mjs"], folder, asked)


def in_go(asked, folder):
    shutil.copytree(LIBRARIES / "go", folder, dirs_exist_ok=True)
    return said_by(["go", "run", "."], folder, asked, GOFLAGS="-mod=readonly")


def in_java(asked, folder):
    [ivy] = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    fetch = [
        java.find(),
        "-jar",
        ivy,
        "-dependency",
        *JAVA_LIBRARY,
        "-confs",
        "default",
        "-retrieve",
        folder / "[artifact].[ext]",
    ]
    subprocess.run(list(map(str, fetch)), cwd=folder, capture_output=True, timeout=FETCH_TIMEOUT_S, check=True)
    [bridge] = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    gateway = py4j.java_gateway.JavaGateway.launch_gateway(
        jarpath=str(bridge), classpath=str(folder / "standardwebhooks.jar"), java_path=str(java.find()), die_on_exit=True
    )
    try:
        # PySpark puts one in its place that takes every error for one of Spark's, in a process that has started Spark.
        with mock.patch.object(py4j.java_gateway, "get_return_value", py4j.protocol.get_return_value):
            return [said_by_java(gateway, request) for request in asked]
    finally:
        gateway.shutdown()


def said_by_java(gateway, request):
    headers = gateway.jvm.java.util.HashMap()
    for name, value in request["headers"].items():
        headers.put(name, gateway.jvm.java.util.List.of(value))
    try:
        gateway.jvm.com.standardwebhooks.Webhook(request["secret"]).verify(request["body"], headers)
    except py4j.protocol.Py4JJavaError as refusal:
        if refusal.java_exception.getClass().getSimpleName() != "WebhookVerificationException":
            raise
        return "refused"
    return "verified"


def if_there_is(tool, asked):
    return pytest.param(asked, marks=pytest.mark.skipif(not shutil.which(tool), reason=f"{tool} is not installed"), id=tool)


@pytest.mark.parametrize(
    "library", [pytest.param(in_java, id="java"), if_there_is("npm", in_javascript), if_there_is("go", in_go)]
)
def test_libraries_of_other_languages_verify_our_signatures(library, tmp_path):
    asked = cases()
    said = library([request for request, _ in asked.values()], tmp_path)
    assert dict(zip(asked, said, strict=True)) == {what: expected for what, (_, expected) in asked.items()}
