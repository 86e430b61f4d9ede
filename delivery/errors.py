"""Every error of the platform, in one tree.

Runs on the driver and in the executors. Imports the standard library only; all classes survive pickling.

    FanoutError
    ├── SettingsError            before the start: a setting is unknown or wrong
    ├── LocalStackError          the embedded Postgres or Kafka cannot run here
    ├── KafkaUnavailable         Kafka does not answer the command or the starting job
    ├── RegistryUnavailable      Postgres cannot be reached now; worth asking again
    ├── RegistryOutdated         the schema is not the one that this version works with
    ├── CheckpointInUse          another job runs a lane on this checkpoint
    ├── LeaseRefused             the API server of Kubernetes does not let this driver use its Lease
    ├── LaneFailed               a streaming query ended by itself; what it committed is kept
    ├── RegistrationError        a document or row is refused, with the path of what is wrong
    │   ├── ManifestRefused      … a whole document, with all that is wrong in it
    │   ├── FilterError          … in a filter pattern
    │   └── TargetRefused        … in an endpoint's URL, headers, authentication or TLS
    ├── SealError                a sealed secret cannot be opened: wrong key, or moved between rows
    ├── StateUnreadable          what a lane keeps was written by another version; nothing of it is touched
    ├── RecordUnreadable         a record in a topic of the job's is not what the job writes there
    ├── Orphaned                 the JVM of a worker is gone; what its task was given runs again elsewhere
    ├── EventRejected            a Kafka record is not an event; it goes to the operator, not to a customer
    └── AttemptFailed            one attempt at a delivery did not end in a response
        ├── LocalFailure             before: our own exhaustion (sockets, memory); never the endpoint's fault
        ├── AddressBlocked           before: the guard refused the address
        ├── TokenRefused             before: the endpoint's token server gave no access token
        ├── DnsFailed                before: the host name did not resolve
        ├── ConnectFailed            before: refused or unreachable; nothing was sent
        ├── TlsFailed                before: no trustworthy connection; nothing was sent
        ├── AttemptTimedOut          during: no answer in time; the endpoint may have processed it
        ├── ConnectionLost           during: reset or closed; the endpoint may have processed it
        └── ResponseInvalid          during: an answer that is not HTTP

The branch below `AttemptFailed` tells when it broke, and so whether the endpoint can have seen the event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class FanoutError(Exception):
    """Root of the tree. The message names the fix."""


class SettingsError(FanoutError):
    """A setting is unknown or wrong. The message names it and the right one."""


class LocalStackError(FanoutError):
    """The embedded Postgres or Kafka cannot run here (no Java, port taken, no network)."""


class KafkaUnavailable(FanoutError):
    """Kafka cannot be reached, or does not let us in."""


class RegistryUnavailable(FanoutError):
    """Postgres cannot be reached or did not answer in time."""


class RegistryOutdated(FanoutError):
    """The schema in Postgres is not at the version that this code works with."""


class CheckpointInUse(FanoutError):
    """Another job runs a lane on this checkpoint. The message says which process."""


class LeaseRefused(FanoutError):
    """The API server of Kubernetes does not let this driver use its Lease. The message names the missing right or file."""


class LaneFailed(FanoutError):
    """A lane's streaming query ended by itself. What it had committed is kept; the next start goes on from there."""


class RegistrationError(FanoutError):
    """A registration is refused. `path` is where in the document, such as `endpoints[3].url`; `file` and `line`, if known."""

    def __init__(self, path: str, problem: str, file: str = "", line: int | None = None) -> None:
        super().__init__(path, problem, file, line)
        self.path = path
        self.problem = problem
        self.file = file
        self.line = line

    def __str__(self) -> str:
        said = f"{self.path}: {self.problem}" if self.path else self.problem
        if self.file:
            return f"{self.file}:{self.line}: {said}" if self.line else f"{self.file}: {said}"
        return f"line {self.line}: {said}" if self.line else said

    def at(self, file: str, line: int | None) -> RegistrationError:
        """Return the same refusal with where it stands."""
        return RegistrationError(self.path, self.problem, file, line)

    def within(self, parent: str) -> RegistrationError:
        """Return the same refusal with its path below `parent`."""
        path = f"{parent}.{self.path}" if self.path and not self.path.startswith("[") else parent + self.path
        return type(self)(path, self.problem)


class ManifestRefused(RegistrationError):
    """A document is refused, for all that is wrong in it. Its path and problem are those of the first mistake."""

    SHOWN = 100
    """Of a document made by a program, each row may have the same mistake."""

    def __init__(self, found: Sequence[RegistrationError]) -> None:
        first = found[0]
        super().__init__(first.path, first.problem, first.file, first.line)
        self.args = (tuple(found),)
        self.found = tuple(found)

    def __str__(self) -> str:
        if len(self.found) == 1:
            return str(self.found[0])
        shown = [f"  {one}" for one in self.found[: self.SHOWN]]
        more = [f"  … and {len(self.found) - self.SHOWN} more"] if len(self.found) > self.SHOWN else []
        return "\n".join([f"{len(self.found)} mistakes, nothing was changed:", *shown, *more])

    def within(self, parent: str) -> ManifestRefused:
        """Return the same refusals with their paths below `parent`."""
        return ManifestRefused([one.within(parent) for one in self.found])


class FilterError(RegistrationError):
    """A filter pattern is refused."""


class TargetRefused(RegistrationError):
    """An endpoint's URL, headers, authentication or TLS make no request that is allowed.

    One text for all address reasons: no port-scan oracle.
    """


class SealError(FanoutError):
    """A sealed secret cannot be opened. Says which key id is missing, or that the data belongs to another row."""


class StateUnreadable(FanoutError):
    """What a lane keeps between micro-batches was written by another version. Start that one again."""


class RecordUnreadable(FanoutError):
    """A record in one of the job's own topics is not what the job writes there. Names its place."""


class Orphaned(FanoutError):
    """The JVM that a worker works for is gone, and nobody will commit its task: it runs again elsewhere."""


class EventRejected(FanoutError):
    """A Kafka record is not an event. `reason` is one of a closed set, `detail` is for a person."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class AttemptFailed(FanoutError):
    """One attempt did not end in a response. `error_class` is the label in outcomes, logs and metrics."""

    error_class: ClassVar[str] = "failed"


class LocalFailure(AttemptFailed):
    """We ran out of something (file descriptors, ports, memory)."""

    error_class = "local"


class AddressBlocked(AttemptFailed):
    """The guard refused the address that the host name stands for."""

    error_class = "address_blocked"


class TokenRefused(AttemptFailed):
    """The endpoint's token server gave no access token: it refused, or could not be asked. Holds neither secret nor token."""

    error_class = "token_refused"


class DnsFailed(AttemptFailed):
    """The host name did not resolve. Its text is that of AddressBlocked: no oracle for the names inside."""

    error_class = "dns"


class ConnectFailed(AttemptFailed):
    """No connection: refused, unreachable or reset while connecting."""

    error_class = "connect"


class TlsFailed(AttemptFailed):
    """No trustworthy TLS connection: expired, unknown issuer, wrong host, old protocol."""

    error_class = "tls"


class AttemptTimedOut(AttemptFailed):
    """The attempt's total time ran out."""

    error_class = "timeout"


class ConnectionLost(AttemptFailed):
    """The connection broke after the request had begun."""

    error_class = "connection_lost"


class ResponseInvalid(AttemptFailed):
    """What came back is not HTTP, or its head is beyond the bounds."""

    error_class = "response_invalid"
