"""Read, create and update one Kubernetes Lease, by the service account of this pod.

Runs on the driver, and in commands that change the checkpoint. Uses the standard library's HTTPS client. A client package would
cost 15 to 160 MB in the image and 0.5 to 1 s of each start (docs/adr/0039). Each request opens its own connection. A failed
request is not retried here: the caller decides whether and when to retry. Proxies that the environment names are not used.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import http.client
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson

from delivery import errors
from delivery.stages.checkpoint_lock import election

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder with the service account of each pod, as Kubernetes mounts it: token, certificate of the authority, namespace."""
TIMEOUT_S = 3.0
"""Seconds for each step of a request: connect, send, each wait for the answer. If a renewal hangs in one step, the next renewal
still begins 3 s before `election.RENEW_DEADLINE_S` ends."""
_REFUSALS = {
    HTTPStatus.UNAUTHORIZED: (
        "the API server does not accept the pod's token (401, {said}): check the service account, its token's audience and the "
        "pod's clock"
    ),
    HTTPStatus.FORBIDDEN: (
        "this pod may not {verb} it (403, {said}): bind a Role with get, create and update on leases of coordination.k8s.io to "
        "the service account of this pod"
    ),
}
"""Message for each status that refuses the Lease to this pod. A retry would not help."""


class Unavailable(Exception):
    """Kubernetes' API server gave no usable answer, or an error that does not refuse this pod. A retry may succeed."""


class Conflict(Exception):
    """The Lease was not written, because somebody else has written or created it since this process read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesLease:
    """A client for one Lease at the API server. The Lease `name` may not exist yet.

    `read` and `write` raise Unavailable if the API server gives no usable answer, or an error that may pass. They raise
    LeaseRefused if the API server refuses this pod, if the API server's certificate does not verify, or if the files of the
    service account cannot be read.
    """

    host: str
    port: int
    name: str
    account: Path
    """Folder with the files of the pod's service account."""

    def read(self) -> election.LeaseRecord | None:
        """Return the Lease; None if it does not exist."""
        status, document = self._call("get", "GET", f"/{self.name}")
        return None if status is HTTPStatus.NOT_FOUND else self._record(document)

    def write(self, record: election.LeaseRecord) -> election.LeaseRecord:
        """Create the Lease if `record.version` is empty, else update the Lease at that version; return the Lease as stored.

        Raise Conflict if the Lease is no longer at that version, or exists when it is to be created.
        """
        body = _document(self.name, record)
        if record.version:
            _, document = self._call("update", "PUT", f"/{self.name}", body)
        else:
            _, document = self._call("create", "POST", "", body)
        return self._record(document)

    def _call(self, verb: str, method: str, path: str, body: bytes | None = None) -> tuple[HTTPStatus, Any]:
        token, namespace = self._read("token"), self._read("namespace")
        headers = {"authorization": f"Bearer {token}", "accept": "application/json", "content-type": "application/json"}
        address = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases{path}"
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=TIMEOUT_S, context=self._context())
        try:
            with contextlib.closing(connection):
                connection.request(method, address, body, headers)
                answer = connection.getresponse()
                status, text = HTTPStatus(answer.status), answer.read()
        except ssl.SSLCertVerificationError as exc:
            raise errors.LeaseRefused(
                f"{self._where(namespace)}: the certificate of {self.host}:{self.port} does not verify by the authority in "
                f"{self.account / 'ca.crt'} ({exc.verify_message}): if it is of another authority, mount the service account's "
                "own files; if it has expired, renew it; if it names another host, check what KUBERNETES_SERVICE_HOST leads to "
                "from this pod"
            ) from exc
        except (OSError, http.client.HTTPException, ValueError) as exc:
            # Not the text of a ValueError: for a header that is not valid it quotes the token.
            said = type(exc).__name__ if isinstance(exc, ValueError) else str(exc) or type(exc).__name__
            problem = "does not answer" if isinstance(exc, OSError) else "gives no usable answer"
            raise Unavailable(f"{self.host}:{self.port} {problem} ({said})") from exc
        if status is HTTPStatus.CONFLICT:
            raise Conflict
        if status in _REFUSALS:
            raise errors.LeaseRefused(f"{self._where(namespace)}: {_REFUSALS[status].format(verb=verb, said=_message(text))}")
        if verb == "get" and status is HTTPStatus.NOT_FOUND:
            return status, None
        if status >= HTTPStatus.BAD_REQUEST:
            raise Unavailable(f"{self.host}:{self.port} answers {status.value} ({_message(text)})")
        try:
            return status, orjson.loads(text)
        except ValueError as exc:
            raise self._not_the_api_server("in JSON") from exc

    def _record(self, document: Any) -> election.LeaseRecord:
        try:
            spec = document.get("spec") or {}
            return election.LeaseRecord(
                holder=spec.get("holderIdentity") or "",
                duration_s=float(spec.get("leaseDurationSeconds") or election.LEASE_S),
                version=document["metadata"]["resourceVersion"],
                acquired=spec.get("acquireTime") or "",
                transitions=spec.get("leaseTransitions") or 0,
            )
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise self._not_the_api_server("with a Lease") from exc

    def _not_the_api_server(self, expected: str) -> Unavailable:
        return Unavailable(
            f"{self.host}:{self.port} answers, but not {expected}, so it is not the API server, or a proxy answers for the API "
            "server: check what KUBERNETES_SERVICE_HOST leads to from this pod"
        )

    def _where(self, namespace: str) -> str:
        return f"Lease {namespace}/{self.name}"

    def _read(self, name: str) -> str:
        """Return a file of the service account as text. Called for each request: Kubernetes replaces the token each hour."""
        try:
            return (self.account / name).read_text().strip()
        except OSError as exc:
            raise self._no_account(name, exc) from exc

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        except (OSError, ssl.SSLError) as exc:
            raise self._no_account("ca.crt", exc) from exc
        # Python 3.13 refuses authorities without some optional extensions, which clusters have and Go's clients accept.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context

    def _no_account(self, name: str, exc: OSError) -> errors.LeaseRefused:
        return errors.LeaseRefused(
            f"Lease {self.name}: {self.account / name} cannot be read ({exc.strerror or exc}): give the driver's pod a service "
            "account (automountServiceAccountToken), or leave spark.checkpoint_lease empty outside Kubernetes"
        )


def of_this_pod(name: str, environ: Mapping[str, str]) -> KubernetesLease:
    """Return a client for the Lease `name` at the API server that Kubernetes names in the environment of each pod.

    Raise LeaseRefused if this process does not run in a pod.
    """
    try:
        host, port = environ["KUBERNETES_SERVICE_HOST"], int(environ["KUBERNETES_SERVICE_PORT"])
    except (KeyError, ValueError):
        raise errors.LeaseRefused(
            f"Lease {name}: this process runs in no pod of Kubernetes (no KUBERNETES_SERVICE_HOST or _PORT). Nothing was "
            "started or changed. If a driver in Kubernetes uses this checkpoint, run `fanout` in its pod. Otherwise leave "
            "spark.checkpoint_lease empty, and keep the checkpoint in a folder, which has locks"
        ) from None
    return KubernetesLease(host=host, port=port, name=name, account=ACCOUNT)


def _document(name: str, record: election.LeaseRecord) -> bytes:
    now = micro_time()
    spec = {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": int(record.duration_s),
        "acquireTime": record.acquired or now,
        "renewTime": now,
        "leaseTransitions": record.transitions,
    }
    metadata = {"name": name} | ({"resourceVersion": record.version} if record.version else {})
    return orjson.dumps({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec})


def micro_time() -> str:
    """Return the present time in the format in which Kubernetes writes it into a Lease."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _message(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
