"""The `fanout` command: what it is called, what it takes, where the work is done.

Each command reads the settings, calls one function and prints. Errors of ours end as one line on standard error.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import orjson
import typer

from delivery import errors
from delivery.config import settings
from fanout.cli import dead_letters, endpoints, filters, replays, serve, smoke_test
from fanout.terminal import commands, listing
from fanout.terminal.commands import AsJson, console

app = typer.Typer(
    help="Event delivery: events from Kafka to every subscribed customer, by signed webhook.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
db = typer.Typer(help="The registry's schema in Postgres.", no_args_is_help=True)
keys = typer.Typer(help="The key ring that seals customers' secrets.", no_args_is_help=True)
app.add_typer(db, name="db")
app.add_typer(endpoints.app, name="endpoints")
app.add_typer(keys, name="keys")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(replays.app, name="replays")
app.add_typer(filters.app, name="filter")
app.add_typer(serve.app, name="api-keys")

_settings, _print_json, _print_table = commands.settings_of, commands.print_json, commands.print_table


@app.callback()
def _common(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="The only settings file (TOML). Default: ./fanout.toml.")] = None,
) -> None:
    context.obj = config


@app.command()
def up(
    root: Annotated[Path, typer.Option(help="Folder that keeps the data.")] = Path(".fanout"),
    kafka_port: Annotated[int, typer.Option(help="Port of Kafka.")] = 9092,
) -> None:
    """Start an embedded Postgres and Kafka and keep them running until Ctrl-C."""
    from fanout.local import stack  # noqa: PLC0415  # needs the extra `local`, which a production image leaves out

    with stack.Stack(root, kafka_port=kafka_port) as running:
        stack.write_local_settings(root, running)
        console.print(f"Postgres  {running.postgres.url}\nKafka     {running.kafka.bootstrap_servers}")
        console.print(f"Settings  {root / 'local.toml'} (read by every command started in this folder)\nCtrl-C ends both.")
        commands.stop_event().wait()


@db.command("migrate")
def db_migrate(
    context: typer.Context,
    wait: Annotated[float, typer.Option(help="Seconds to wait for a Postgres that does not answer yet.")] = 0,
) -> None:
    """Bring the schema to the version that this code works with. Safe to repeat, and while the job runs."""
    from subscriptions_db.postgres import connect, migrate  # noqa: PLC0415

    config = _settings(context)
    for attempt in connect.retry_for(wait):
        with attempt, connect.connect(config.database) as connection:
            applied = migrate.migrate(connection)
    console.print("\n".join(f"applied {name}" for name in applied) or "the schema is current")


@app.command()
def apply(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="YAML document; see docs/registering.md.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    prune: Annotated[bool, typer.Option(help="Delete what the file's customers have and the file does not name.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse what is only warned of, and change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Register tenants, endpoints and subscriptions from FILE. Safe to repeat: only differences change."""
    from fanout.admin import registry_commands  # noqa: PLC0415

    result = registry_commands.apply_file(_settings(context), file, dry_run=dry_run, prune=prune, strict=strict)
    if as_json:
        _print_json(registry_commands.as_document(result))
    else:
        registry_commands.show(console, result, dry_run=dry_run)


@app.command()
def get(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(help="tenants, customers, endpoints, subscriptions or event-types; or KIND/ID.")],
    row_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Only this one.")] = None,
    output: listing.Output = None,
    as_json: AsJson = False,
) -> None:
    """Show what is registered. Secrets are never shown."""
    from fanout.admin import registry_commands  # noqa: PLC0415

    name, _, in_kind = kind.partition("/")
    if in_kind and row_id is not None:
        raise typer.BadParameter(f"name one id: {kind} or {name} {row_id}")
    of = registry_commands.kind_of(name)
    rows = registry_commands.get(_settings(context), of, in_kind or (row_id and listing.id_of(row_id, of.singular)))
    wide = [registry_commands.shortened(row) for row in rows]
    table = listing.columns(wide, of.brief)
    listing.show(rows, kind=of.singular, key="id", form=output, as_json=as_json, table=table, wide=wide)


@keys.command("generate")
def keys_generate() -> None:
    """Print a new key for the setting `keys.ring`."""
    from subscriptions_db.secrets import keyring  # noqa: PLC0415

    console.print(keyring.generate())


@keys.command("rotate")
def keys_rotate(context: typer.Context) -> None:
    """Seal every secret with the active key. Afterwards the other keys of the ring may be removed."""
    from fanout.admin import registry_commands  # noqa: PLC0415

    console.print(f"{registry_commands.rotate_keys(_settings(context))} secrets sealed anew")


@app.command()
def run(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Deliver what is in Kafka now, then end.")] = False,
    lanes: Annotated[
        str,
        typer.Option(help="Which lanes to run, with commas: direct, batch, retry, realtime. [default: all that have topics]"),
    ] = "",
) -> None:
    """Run the job: read events, deliver them, record every outcome. SIGTERM and Ctrl-C end it between micro-batches."""
    from delivery import job  # noqa: PLC0415  # pyspark takes a second to import; the other commands do without
    from delivery.stages.lanes import session  # noqa: PLC0415
    from fanout.jvm import class_archive, jars  # noqa: PLC0415

    config, names = _settings(context), _lanes(lanes, job.LANES) if lanes else None
    libraries = session.Libraries(jars=jars.ensure().for_spark(config.spark.checkpoint), class_archive=class_archive.find())
    job.run(config, libraries=libraries, stop=commands.stop_event(), names=names, once=once)


@app.command("accept-loss")
def accept_loss(
    context: typer.Context,
    lanes: Annotated[str, typer.Option(help="Which lanes' checkpoints, with commas. [default: all that have topics]")] = "",
    is_sure: Annotated[bool, typer.Option("--yes", help="Note what is lost in the audit log, and go on behind it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show which records were gone before the job read them; with --yes, let it go on without them. The job is stopped."""
    from delivery import job  # noqa: PLC0415  # as above
    from delivery.stages.lanes import session  # noqa: PLC0415
    from delivery.stages.realtime import lane as realtime_lane  # noqa: PLC0415
    from fanout.admin import accept_loss  # noqa: PLC0415
    from fanout.jvm import class_archive, jars  # noqa: PLC0415

    config = _settings(context)
    names = _lanes(lanes, job.LANES) if lanes else realtime_lane.default_names(config, job.LANES)
    libraries = session.Libraries(jars=jars.ensure().for_spark(config.spark.checkpoint), class_archive=class_archive.find())
    found = [one.document() for one in accept_loss.accept(config, libraries, names, is_dry=not is_sure)]
    if as_json:
        _print_json({"accepted": is_sure, "lost": found})
        return
    _print_table(found)
    if found:
        console.print(
            "It is in the audit log, and the job goes on behind it." if is_sure else "Say --yes to go on without them."
        )


def _lanes(chosen: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in chosen.split(",")))
    if unknown := set(names) - set(known):
        raise errors.SettingsError(f"there is no lane {min(unknown)!r}: there are {', '.join(known)}")
    return names


@app.command()
def prepare() -> None:
    """Fetch the jars, and archive the classes that Spark starts with: each once, so that `fanout run` starts sooner."""
    from fanout.jvm import class_archive, jars  # noqa: PLC0415

    jars.ensure()
    try:
        class_archive.ensure()
    except errors.LocalStackError as exc:  # a Java that makes none runs all the same
        console.print(f"{exc}\nIt is not needed: a start takes some seconds longer.", markup=False)


@app.command()
def archive(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Archive what is in Kafka now, then end.")] = False,
) -> None:
    """Keep dead letters and attempts in Postgres, to be polled and searched. SIGTERM and Ctrl-C end it between two writes."""
    from fanout.archiver import process  # noqa: PLC0415

    process.run(_settings(context), stop=commands.stop_event(), once=once)


@app.command()
def publish(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="NDJSON file, `-` for standard input.")] = None,
    topic: Annotated[str | None, typer.Option(help="Topic for all events. Default: made of each event's type.")] = None,
    generate: Annotated[int, typer.Option(help="Generate so many events instead of reading a file.")] = 0,
    event_type: Annotated[str, typer.Option("--type", help="Type of generated events.")] = "order.created",
    tenants: Annotated[int, typer.Option(help="Generate events of tenants tenant-1 to tenant-N.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the generated events.")] = 0,
    unchecked: Annotated[bool, typer.Option("--unchecked", help="Publish also what the job would reject.")] = False,
    as_json: AsJson = False,
) -> None:
    """Publish events from NDJSON or generated ones. Missing topics are created.

    Of a file with a line that the job would reject nothing is published; of standard input, the lines before it.
    """
    from delivery.config import worker_plans  # noqa: PLC0415
    from fanout.kafka import publishing  # noqa: PLC0415

    config = _settings(context)
    messages: Iterable[publishing.Message]
    if generate:
        rng = random.Random(seed)  # noqa: S311  # test data, not a secret
        messages = publishing.generated(generate, event_type=event_type, tenants=tenants, source=config.source, rng=rng)
    elif file is not None:
        layout = None if unchecked else worker_plans.layout_of(config)
        if str(file) == "-":
            messages = publishing.from_lines(sys.stdin.buffer, config.source, topic, layout)
        else:  # all lines are checked before the first is published
            messages = list(publishing.from_lines(file.read_bytes().splitlines(), config.source, topic, layout))
    else:
        raise typer.BadParameter("name an NDJSON file, or say --generate N")
    published = publishing.publish_all(config, messages)
    if as_json:
        _print_json({"published": sum(published.values()), "topics": published})
    else:
        _print_table([{"topic": name, "events": count} for name, count in sorted(published.items())])


@app.command()
def listen(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 9000,
    secret: Annotated[list[str] | None, typer.Option(help="Signing secret (whsec_…) to verify with; may be repeated.")] = None,
    status: Annotated[int, typer.Option(help="Answer every request with this status.")] = 200,
    as_json: AsJson = False,
) -> None:
    """Receive webhooks on this machine: verify each signature and print it."""
    from fanout.local import receiver  # noqa: PLC0415

    def show(received: receiver.Received) -> None:
        verified = "verified" if received.is_verified else "NOT VERIFIED" if secret else "not checked (no --secret)"
        events = None if received.batch is None else len(received.batch)
        if as_json:
            document = {"path": received.path, "webhook_id": received.webhook_id, "verified": received.is_verified}
            document |= {"events": events, "body": received.body.decode(errors="replace")}
            commands.JsonLines().write(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))
        elif events is not None:
            packed = ", gzip" if "content-encoding" in received.headers else ""
            console.print(
                f"{received.path} {received.webhook_id} {verified}: {events} events, {len(received.body)} bytes{packed}"
            )
        else:
            console.print(f"{received.path} {received.webhook_id} {verified}")
            console.print(received.body.decode(errors="replace"), markup=False)

    with receiver.Receiver(
        secrets_of=lambda _: secret or [], on_received=show, answer=lambda _: status, port=port
    ) as listening:
        commands.say(f"listening on {listening.url}; Ctrl-C ends")
        commands.stop_event().wait()


@app.command()
def demo(
    events: Annotated[int, typer.Option(min=100, help="How many events to publish.")] = 5000,
    seed: Annotated[int, typer.Option(help="Seed of tenants, subscriptions and events.")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the result to this file.")] = None,
) -> None:
    """Run the whole platform on this machine and prove that nothing is lost."""
    from fanout.demo import run as demo_run  # noqa: PLC0415

    result = demo_run.run(events=events, seed=seed, console=console, stop=commands.stop_event())
    if json_file is not None:
        json_file.write_bytes(orjson.dumps(result.document(), option=orjson.OPT_INDENT_2))
    raise typer.Exit(0 if result.holds else 1)


@app.command()
def doctor(context: typer.Context, as_json: AsJson = False) -> None:
    """Check everything that the platform needs, and say how to mend what is missing."""
    from fanout.admin import diagnosis  # noqa: PLC0415

    findings = diagnosis.examine(_settings(context))
    if as_json:
        _print_json([finding.document() for finding in findings])
    else:
        for finding in findings:
            mark = "[green]ok[/]" if finding.is_fine else "[red]!![/]"
            console.print(f"{mark}  {finding.subject}: ", finding.text, sep="")
    raise typer.Exit(0 if all(finding.is_fine for finding in findings) else 1)


@app.command()
def reconcile(
    context: typer.Context,
    since: Annotated[
        str | None, typer.Option(help="Only what was handled since: 24h, or 2026-05-01T10:00Z. Default: all.")
    ] = None,
    max_wait: Annotated[
        str, typer.Option(help="The longest max_wait_s of all endpoints: what waits for its batch for longer does not add up.")
    ] = "24h",
    settle: Annotated[
        str,
        typer.Option(help="While the job runs: what was written in the last such time is not judged. 0s: the job is stopped."),
    ] = "10s",
    as_json: AsJson = False,
) -> None:
    """Prove from the topics that in = delivered + pending + dead-lettered + skipped. Exit code 1: it does not add up."""
    from fanout.reconcile import proving  # noqa: PLC0415
    from fanout.terminal import times  # noqa: PLC0415

    proof = proving.reconcile(
        _settings(context),
        since_ms=None if since is None else times.moment_ms("--since", since, now_ms=round(time.time() * 1000)),
        max_wait_s=times.seconds("--max-wait", max_wait),
        settle_s=times.seconds("--settle", settle),
        console=commands.progress,
    )
    if as_json:
        _print_json(proof.document())
    else:
        proving.show(console, proof)
    raise typer.Exit(0 if proof.account.holds else 1)


@app.command("config")
def config_(context: typer.Context, as_json: AsJson = False) -> None:
    """Show every setting, its value here and what it means. Secrets are starred out."""
    loaded = _settings(context)
    rows = [
        {
            "setting": name,
            "value": str(getattr(getattr(loaded, name.split(".")[0]), name.split(".")[1])),
            "meaning": settings.meaning(name),
        }
        for name in settings.known_names()
    ]
    if as_json:
        _print_json(rows)
    else:
        _print_table(rows)


app.command()(serve.serve)
app.command()(serve.openapi)
app.command()(smoke_test.smoke_test)


def main() -> None:
    """Run the command; turn our errors into one line and an exit code: 2 for settings, 1 for the rest."""
    try:
        app()
    except errors.SettingsError as exc:
        commands.say(f"fanout: {exc}")
        sys.exit(2)
    except errors.FanoutError as exc:
        commands.say(f"fanout: {exc}")
        sys.exit(1)


if __name__ == "__main__":
    main()
