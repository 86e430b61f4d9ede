"""A real server that speaks S3: versitygw, which keeps objects as files, so that a test can look at them."""

from __future__ import annotations

import os
import socket
import subprocess
import time

from fanout.local.kafka_server import free_port
from tests.k8s.cluster import layout

BUCKET = "fanout"
ACCESS, SECRET = "AKIATESTONLY", "only-for-tests"
STARTS_WITHIN_S = 30


class Store:
    """A server with one bucket, on a port of its own."""

    def __init__(self, folder):
        self._folder = folder
        self.bucket = folder / "objects" / BUCKET
        self.bucket.mkdir(parents=True)
        self.credentials = self.credentials_of("right", SECRET)
        self._port = free_port()

    def credentials_of(self, name, secret):
        """An AWS shared credentials file."""
        path = self._folder / name
        path.write_text(f"[default]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {secret}\n")
        return path

    @property
    def conf(self):
        """Return the `spark.conf` settings for a store that is not AWS's."""
        return {
            "spark.hadoop.fs.s3a.endpoint": f"http://127.0.0.1:{self._port}",
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }

    def start(self):
        environ = os.environ | {"ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET}
        with (self._folder / "versitygw.log").open("ab") as log:
            command = [
                layout.BIN / "versitygw",
                "--port",
                f"127.0.0.1:{self._port}",
                "--keep-alive",
                "--quiet",
                "posix",
                self._folder / "objects",
            ]
            self._process = subprocess.Popen(list(map(str, command)), env=environ, stdout=log, stderr=log)
        deadline = time.monotonic() + STARTS_WITHIN_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            except OSError:
                assert time.monotonic() < deadline, (self._folder / "versitygw.log").read_text()
                time.sleep(0.1)
            else:
                return

    def stop(self):
        self._process.kill()
        self._process.wait()


class Url(str):
    """A URL to which names are added as to a path."""

    __slots__ = ()

    def __truediv__(self, name):
        return Url(f"{self}/{name}")
