"""Findings of `fanout doctor` about the interpreter, the host name and an absent Kafka."""

import functools
import sys
import sysconfig
from urllib import parse

import pytest
from aiohttp import web
from typer.testing import CliRunner

from delivery.config import settings
from delivery.stages import local_address
from fanout.admin import diagnosis
from fanout.cli import main
from tests.support import thread_server


@pytest.mark.parametrize(
    ("prefix", "arguments", "is_reported"),
    [
        ("/home/somebody/.pyenv/versions/3.11.7", "'--enable-shared'", True),
        ("/usr/local", "'--enable-optimizations' '--with-lto'", False),  # the official image
        ("/usr", "'--enable-shared'", False),  # the distribution's says nothing of it in its arguments
    ],
)
def test_an_unoptimised_interpreter_is_reported_but_is_no_fault(prefix, arguments, is_reported, monkeypatch):
    monkeypatch.setattr(sys, "base_prefix", prefix)
    monkeypatch.setattr(sysconfig, "get_config_var", {"CONFIG_ARGS": arguments}.get)
    [found] = diagnosis._findings(settings.Settings(), {"python": diagnosis._python})
    assert (found.is_fine, "--enable-optimizations" in found.text) == (True, is_reported)


def test_an_unresolvable_host_name_is_shown_with_sparks_address(monkeypatch):
    for name in ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(local_address, "host_name", lambda: "no..such..name")
    [found] = diagnosis._findings(settings.Settings(), {"host name": diagnosis._host_name})
    assert (found.is_fine, found.text) == (
        True,
        "no..such..name does not resolve: Spark uses 127.0.0.1, unless SPARK_LOCAL_IP is set",
    )


def test_the_area_of_a_setting_stays_in_the_advice(monkeypatch):
    """Regression: "the settings of [kafka]" was taken for markup, and shown as "the settings of "."""
    fault = diagnosis.Diagnosis(subject="kafka", is_fine=False, text="correct the settings of [kafka]: addresses")
    monkeypatch.setattr(diagnosis, "examine", lambda _: [fault])
    assert "!!  kafka: correct the settings of [kafka]: addresses" in CliRunner().invoke(main.app, ["doctor"]).stdout


def test_an_absent_kafka_is_shown_with_its_effect_on_start_and_job():
    """Regression: the finding said that the job would wait, and a job that was started then ended."""
    away = settings.Settings(kafka=settings.KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    [found] = diagnosis._findings(away, {"kafka": functools.partial(diagnosis._kafka, timeout_s=0.2)})
    assert not found.is_fine
    assert "A job that starts now ends with exit code 1; a running job waits for Kafka." in found.text


class Job(thread_server.ThreadServer):
    """A job whose lane is ready."""

    def routes(self):
        return [web.get("/readyz", self._ready)]

    async def around(self, request, handler):
        return await handler(request)

    async def _ready(self, _):
        return web.json_response({"ok": True, "lanes": {"direct": {"ok": True, "reason": "running"}}})


def test_the_job_is_asked_without_the_proxy_of_the_environment(monkeypatch):
    """Regression: with `http_proxy` set, a ready job was reported as absent, or as a program that is not the job."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # nothing listens there
    with Job() as job:
        config = settings.Settings(metrics=settings.MetricsSettings(port=parse.urlsplit(job.url).port))
        [found] = diagnosis._findings(config, {"job": diagnosis._job})
    assert (found.is_fine, found.text) == (True, "ready")


def test_an_unforeseen_error_in_a_check_ends_no_other_check():
    """Regression: the checks after it were not made, and the operator saw a traceback only."""
    checks = {"first": lambda _: str(1 / 0), "second": lambda _: "well"}
    first, second = diagnosis._findings(settings.Settings(), checks)
    assert (first.is_fine, "an unforeseen ZeroDivisionError" in first.text) == (False, True)
    assert (second.is_fine, second.text) == (True, "well")
