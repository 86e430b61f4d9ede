"""Define the errors that several parts of the platform raise or catch, in one tree.

Used in every process. Imports the standard library only. All classes can be pickled.

    FanoutError
    ├── SettingsError            a setting or an option of a command is wrong or does not fit; mostly before anything starts
    ├── LocalStackError          Java, the jars, the embedded Postgres or Kafka, the demo or a receiver cannot be used here
    ├── KafkaUnavailable         Kafka gives no answer, or refuses a request or a record
    │   └── TopicUnreadable      … because this login may not read one topic, or records of the topic were deleted
    ├── RegistryUnavailable      Postgres is unavailable now; a retry may succeed
    ├── SchemaRegistryUnavailable  the schema registry gives no usable answer now; records that need a schema wait
    ├── RegistryOutdated         the schema in Postgres, or Postgres itself, is of an unfit version
    ├── CheckpointInUse          another job, or `fanout accept-loss`, uses a lane of this checkpoint
    ├── LeaseRefused             the API server of Kubernetes does not let this driver use its Lease
    ├── LaneFailed               a lane cannot run, or its query ended by itself; committed micro-batches are kept
    ├── RegistrationError        a document, row or request is refused, with the path of the mistake
    │   ├── ManifestRefused      … a whole document, with all mistakes that one check of it found
    │   ├── FilterError          … because of a filter pattern
    │   └── TargetRefused        … because of an endpoint's URL, headers, authentication or TLS
    ├── SealError                a sealed secret cannot be opened, or an endpoint has no signing secret
    ├── StateUnreadable          a lane's state is empty or of another version, or a message has an unknown format
    ├── RecordUnreadable         a record in a topic of the job is not one that this version of the job writes
    ├── Orphaned                 the JVM of a worker is gone, or did not end a stopped query; the task's records are read again
    ├── EventRejected            a Kafka record, or a document to publish, is refused as an event; no customer gets it
    │   └── BatchFound           … because it is a batch of events, which a lane splits into records
    └── AttemptFailed            one attempt at a delivery did not end in a response
        ├── LocalFailure             any time: our sockets, memory or CPU are exhausted; never the endpoint's fault
        ├── AddressBlocked           before: the guard refused the address
        ├── TokenRefused             before: the endpoint's token server gave no access token
        ├── DnsFailed                before: the host name did not resolve
        ├── ConnectFailed            before: refused or unreachable
        ├── TlsFailed                before: no trustworthy connection
        ├── AttemptTimedOut          any time: no response in time; the endpoint may have processed the event
        ├── ConnectionLost           during: reset or closed; the endpoint may have processed the event
        └── ResponseInvalid          during: the response is not HTTP, or its head is too large

The first words of each line below `AttemptFailed` say when the attempt failed: before or during the request to the endpoint.
With `before`, the endpoint may have seen the event all the same, in an earlier request of the attempt. The earlier request was
answered with 401, or was sent on a reused connection that broke or sent a 408.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class FanoutError(Exception):
    """Root of the platform's errors. A command prints the message, which says what to do, without a traceback."""


class SettingsError(FanoutError):
    """A setting or an option of a command is wrong, or does not fit the machine, Kafka, the registry or the checkpoint.

    Also raised if something that a command names does not exist. The message says what to correct.
    """


class LocalStackError(FanoutError):
    """Java, the jars, the embedded Postgres or Kafka, the demo or a local receiver cannot be used on this machine.

    Also raised by a load test that cannot continue.
    """


class KafkaUnavailable(FanoutError):
    """Kafka cannot be reached, or refuses a request or a record: wrong credentials, a missing right, a record too large."""


class TopicUnreadable(KafkaUnavailable):
    """Kafka answers, but gives no records of one topic: this login may not read the topic, or the records were deleted."""


class RegistryUnavailable(FanoutError):
    """Postgres cannot be reached, is read-only, lacks a resource, denies a right, or rolled a transaction back.

    A retry may succeed.
    """


class SchemaRegistryUnavailable(FanoutError):
    """The schema registry cannot be reached, or does not say if it has a schema. The records that need the schema wait."""

    is_forbidden = False
    """True if the schema registry answers that this login may not read the schema (status 403)."""
    is_of_schema = False
    """True if the schema registry answered, but gave no usable answer for this schema. Other schemas may be readable."""


class RegistryOutdated(FanoutError):
    """The schema in Postgres is missing or not at the version that this code needs, or Postgres itself is too old."""


class CheckpointInUse(FanoutError):
    """Another job, or `fanout accept-loss`, uses a lane of this checkpoint. The message names that process, if it is known."""


class LeaseRefused(FanoutError):
    """The API server of Kubernetes does not let this driver use its Lease, or the server's certificate does not verify.

    Also raised if this process runs in no pod, or cannot read the service account's files. The message says what to correct.
    """


class LaneFailed(FanoutError):
    """A lane cannot run, or the lane's streaming query ended by itself.

    The next start continues after the lane's last committed micro-batch. Also raised in five other cases. (1) The checkpoint
    is damaged, or another version of Spark wrote it; then the next start fails too. (2) Spark's JVM has ended. (3) A
    micro-batch ran on for too long after a stop. (4) `fanout doctor` finds that a lane is not ready, or that another program
    answers on the job's port. (5) `fanout accept-loss` finds a lane that has started a micro-batch and committed none.
    """


class RegistrationError(FanoutError):
    """A document, a row, a request or a value is refused. `problem` is the mistake, as text that follows `path`.

    `path` is the place of the mistake, such as `endpoints[3].url`. Empty: the mistake concerns the whole document or value.
    `file` is the name of the document. Empty: the document has no name. `line` is the line of the mistake. None: unknown.
    """

    def __init__(self, path: str, problem: str, file: str = "", line: int | None = None) -> None:
        super().__init__(path, problem, file, line)
        self.path = path
        self.problem = problem
        self.file = file
        self.line = line

    def __str__(self) -> str:
        text = f"{self.path}: {self.problem}" if self.path else self.problem
        if self.file:
            return f"{self.file}:{self.line}: {text}" if self.line else f"{self.file}: {text}"
        return f"line {self.line}: {text}" if self.line else text

    def at(self, file: str, line: int | None) -> RegistrationError:
        """Return a RegistrationError with this path and problem, and the file and line of the mistake."""
        return RegistrationError(self.path, self.problem, file, line)

    def within(self, parent: str) -> RegistrationError:
        """Return this refusal with `parent` in front of its path, without file and line."""
        path = f"{parent}.{self.path}" if self.path and not self.path.startswith("[") else parent + self.path
        return type(self)(path, self.problem)


class ManifestRefused(RegistrationError):
    """A check of a document failed. `found` has all mistakes that this check found, at least one.

    Later checks did not run, and may find further mistakes. `path`, `problem`, `file` and `line` are of the first mistake.
    """

    SHOWN = 100
    """Most mistakes that the message lists. In a generated document each row may have the same mistake."""

    def __init__(self, found: Sequence[RegistrationError]) -> None:
        first = found[0]
        super().__init__(first.path, first.problem, first.file, first.line)
        self.args = (tuple(found),)
        self.found = tuple(found)

    def __str__(self) -> str:
        if len(self.found) == 1:
            return str(self.found[0])
        shown = [f"  {mistake}" for mistake in self.found[: self.SHOWN]]
        more = [f"  … and {len(self.found) - self.SHOWN} more"] if len(self.found) > self.SHOWN else []
        return "\n".join([f"{len(self.found)} mistakes, nothing was changed:", *shown, *more])

    def within(self, parent: str) -> ManifestRefused:
        """Return these refusals with `parent` in front of their paths, without files and lines."""
        return ManifestRefused([mistake.within(parent) for mistake in self.found])


class FilterError(RegistrationError):
    """The filter pattern of a subscription is refused."""


class TargetRefused(RegistrationError):
    """An endpoint's URL, headers, authentication or TLS settings are not permitted.

    All refused addresses get the same text, so that the text does not help a port scan.
    """


class SealError(FanoutError):
    """A sealed secret cannot be opened, or an endpoint has no valid signing secret. The message says what to do.

    A sealed secret cannot be opened in three cases. (1) The key ring lacks the key that sealed the secret, or has another key
    under this key's id. (2) The secret was sealed for another row. (3) The format of the sealed secret is unknown.
    """


class StateUnreadable(FanoutError):
    """The state of a lane, or a record of the retries topic, is empty or in a format of another version of fanout.

    Readers of the retries topic raise RecordUnreadable in its place.
    """


class RecordUnreadable(FanoutError):
    """A record in one of the job's own topics is not one that this version of the job writes.

    The message, or the log line of its reader, names the record's topic, partition and offset.
    """


class Orphaned(FanoutError):
    """The JVM of a worker is gone, so the worker's task cannot be committed. The task's records are read again.

    Also raised in a stopped task of the real-time lane whose query did not end in time.
    """


class EventRejected(FanoutError):
    """A Kafka record, or a document to publish, is refused as an event.

    `reason` is a word of a closed set. `detail` is for a person.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class BatchFound(EventRejected):
    """A Kafka record is a batch of `events` events, and `source.batch_records` is `taken_apart`.

    `written_bytes` is the size of the records that a lane writes for these events, without their keys. Only
    delivery.webhooks.routing.intake catches BatchFound. Other callers handle BatchFound like any EventRejected.
    """

    def __init__(self, events: int, written_bytes: int) -> None:
        super().__init__(
            "unsupported",
            f"the record is a batch of {events} events, and no event itself. A lane writes each event as a record of its own: "
            "here, give each event by itself",
        )
        self.args = (events, written_bytes)
        self.events = events
        self.written_bytes = written_bytes

    def __str__(self) -> str:
        return self.detail


class AttemptFailed(FanoutError):
    """A request to an endpoint got no response, or the endpoint's token server gave no usable token.

    `error_class` names the failure in records of attempts, logs and metrics. Each subclass has its own `error_class`.
    """

    error_class: ClassVar[str] = "failed"


class LocalFailure(AttemptFailed):
    """The sending process has too few file descriptors, connections, DNS threads or ports, or too little memory or CPU.

    If an unforeseen error in our own code ends an attempt, the attempt has this error class too.
    """

    error_class = "local"


class AddressBlocked(AttemptFailed):
    """The guard refused the address of the endpoint's host."""

    error_class = "address_blocked"


class TokenRefused(AttemptFailed):
    """The endpoint's token server gave no usable access token in time. The text has neither secret nor token."""

    error_class = "token_refused"


class DnsFailed(AttemptFailed):
    """The host name did not resolve.

    The text of the error equals the text of AddressBlocked, so that a customer learns nothing about internal names.
    """

    error_class = "dns"


class ConnectFailed(AttemptFailed):
    """A connection could not be opened: it was refused, unreachable, or reset while connecting."""

    error_class = "connect"


class TlsFailed(AttemptFailed):
    """TLS failed. For example, the certificate is expired or of another host, or the receiver's TLS version is too old."""

    error_class = "tls"


class AttemptTimedOut(AttemptFailed):
    """The attempt's total time ran out before a response's status arrived."""

    error_class = "timeout"


class ConnectionLost(AttemptFailed):
    """The connection was open, and broke before a response's status arrived."""

    error_class = "connection_lost"


class ResponseInvalid(AttemptFailed):
    """The response is not HTTP, or its status line and headers are too large or too many."""

    error_class = "response_invalid"
