"""Define `fanout` and its commands: their options, and the functions that they call.

Most commands read the settings, call one function and print. For a FanoutError they print one message to standard error.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import rich.markup
import typer

from delivery import errors
from delivery.config import settings
from fanout.cli import command_groups, development, serve, smoke_test
from fanout.terminal import commands, listing
from fanout.terminal.commands import AsJson, console

app = typer.Typer(
    cls=command_groups.CommandGroups,
    help="Event delivery: events from Kafka to every subscribed customer, by signed webhook.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
db = typer.Typer(help="Migrate the registry's schema in Postgres.", no_args_is_help=True)
keys = typer.Typer(help="Generate and rotate the keys that encrypt customers' secrets.", no_args_is_help=True)
app.add_typer(db, name="db")
app.add_typer(keys, name="keys")
app.add_typer(serve.app, name="api-keys")
app.command()(development.up)
app.command()(development.demo)
app.command()(development.listen)

CONFIG_HELP = (
    "Settings file (TOML), read in place of ./fanout.toml and ./.fanout/local.toml. Variables FANOUT_… override its settings."
)
_settings, _print_json, _print_table = commands.settings_of, commands.print_json, commands.print_table


@app.callback()
def _common(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help=CONFIG_HELP)] = None,
) -> None:
    context.obj = config


@db.command("migrate")
def db_migrate(
    context: typer.Context,
    wait: Annotated[float, typer.Option(help="Seconds to wait for a Postgres that does not answer yet.")] = 0,
) -> None:
    """Migrate the schema to the version that this code needs. Safe to repeat, also while the job runs."""
    from subscriptions_db.postgres import connect, migrate  # noqa: PLC0415

    config = _settings(context)
    for attempt in connect.retry_for(wait):
        with attempt, connect.connect(config.database) as connection:
            applied = migrate.migrate(connection)
    console.print("\n".join(f"applied {name}" for name in applied) or "the schema is current")


@app.command()
def apply(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="YAML document (docs/registering.md); `-` is standard input.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes, and make none.")] = False,
    prune: Annotated[
        bool,
        typer.Option(help="Also delete rows that the file does not name, of its customers and of the owners of its endpoints."),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Treat warnings as errors: refuse the file, and change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Register the tenants, customers, endpoints, subscriptions and event types in FILE.

    Safe to repeat: only differences are written.
    """
    from fanout.admin import registry_commands  # noqa: PLC0415

    try:
        result = registry_commands.apply_file(_settings(context), file, dry_run=dry_run, prune=prune, strict=strict)
    except errors.RegistrationError as refused:
        found = refused.found if isinstance(refused, errors.ManifestRefused) else []
        hint = context.meta.get(commands.WITHOUT_SETTINGS)
        if hint and any(mistake.path.endswith("url") for mistake in found):  # the defaults permit no address of this machine
            refused.add_note(hint)
        if len(found) > 1:
            raise  # a list of mistakes already says that nothing was changed
        commands.say("\n".join([f"fanout: {refused}", "Nothing was changed.", *getattr(refused, "__notes__", [])]))
        raise typer.Exit(1) from None
    if as_json:
        _print_json(registry_commands.as_document(result))
    else:
        registry_commands.show(console, result, dry_run=dry_run)


@app.command()
def get(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(help="tenants, customers, endpoints, subscriptions or event-types; or KIND/ID.")],
    row_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Only the row with this id.")] = None,
    output: listing.Output = None,
    as_json: AsJson = False,
) -> None:
    """Show rows of the registry. Secrets are never shown."""
    from fanout.admin import registry_commands  # noqa: PLC0415

    name, _, in_kind = kind.partition("/")
    if in_kind and row_id is not None:
        raise typer.BadParameter(f"two ids are given, so nothing is shown: write {kind}, or {name} {row_id}")
    listed = registry_commands.kind_of(name)
    rows = registry_commands.get(_settings(context), listed, in_kind or (row_id and listing.id_of(row_id, listed.singular)))
    wide = [registry_commands.shortened(row) for row in rows]
    table = listing.columns(wide, listed.brief)
    listing.show(rows, kind=listed.singular, key="id", form=output, as_json=as_json, table=table, wide=wide)


@keys.command("generate")
def keys_generate() -> None:
    """Print a new encryption key for the setting `keys.ring`."""
    from subscriptions_db.secrets import keyring  # noqa: PLC0415

    console.print(keyring.generate())


@keys.command("rotate")
def keys_rotate(context: typer.Context) -> None:
    """Encrypt again, with the active key, every secret that is encrypted with another key.

    Restart every `fanout serve` with the active key first. If a second run of this command prints 0, you may remove the other
    keys from the ring. A secret that no key of the ring opens stays unchanged, and the command then fails.
    """
    from fanout.admin import registry_commands  # noqa: PLC0415

    console.print(f"{registry_commands.rotate_keys(_settings(context))} secrets encrypted again with the active key")


@app.command()
def run(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Handle the events that are in Kafka now, then exit.")] = False,
    lanes: Annotated[
        str,
        typer.Option(
            help="Lanes to run, separated by commas: direct, batch, retry, realtime. Default: all, but realtime only if "
            "source.realtime_pattern is set."
        ),
    ] = "",
) -> None:
    """Run the job: read events, deliver them, record every outcome. SIGTERM and Ctrl-C stop it gracefully."""
    from delivery import job, job_lanes  # noqa: PLC0415  # importing pyspark takes a second, and other commands do not need it
    from fanout.jvm import libraries  # noqa: PLC0415
    from subscriptions_db.following.postgres_registry import PostgresRegistry  # noqa: PLC0415

    config, names = _settings(context), _lanes(lanes, job_lanes.LANES) if lanes else None
    access = PostgresRegistry(config)
    if once:  # a job that keeps running waits for the migration
        access.require_migrated()
    found = libraries.of(config.spark)  # Ctrl-C still ends a download of jars at once
    job.run(config, access=access, libraries=found, stop=commands.stop_event(), names=names, once=once)


@app.command("accept-loss")
def accept_loss(
    context: typer.Context,
    lanes: Annotated[str, typer.Option(help="Lanes to examine, separated by commas. Default: those of `fanout run`.")] = "",
    is_sure: Annotated[
        bool, typer.Option("--yes", help="Write the loss to the audit log, and move the checkpoints past it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show records that Kafka deleted before the job read them. With --yes, the job skips these records. Stop the job first."""
    from delivery import job_lanes  # noqa: PLC0415  # importing pyspark takes a second
    from fanout.admin import accept_loss  # noqa: PLC0415
    from fanout.jvm import libraries  # noqa: PLC0415

    config = _settings(context)
    names = _lanes(lanes, job_lanes.LANES) if lanes else job_lanes.default_names(config)
    lost = accept_loss.accept(config, libraries.of(config.spark), names, is_dry=not is_sure)
    found = [loss.document() for loss in lost]
    if as_json:
        _print_json({"accepted": is_sure, "lost": found})
        return
    if not found:
        console.print(f"The lanes {', '.join(names)} have lost no records, so none was skipped.")
        return
    _print_table(found)
    console.print(
        "The loss is in the audit log. The job continues after these records."
        if is_sure
        else "No record was skipped. To continue without these records, run the command again with --yes."
    )


def _lanes(chosen: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in chosen.split(",")))
    if unknown := set(names) - set(known):
        raise errors.SettingsError(
            f"--lanes: there is no lane {min(unknown)!r}, so nothing was done. Name one or more of {', '.join(known)}, with "
            "commas between them"
        )
    return names


@app.command()
def prepare() -> None:
    """Download the jars and build archives of Java classes, so that `fanout run` and `fanout up` start faster.

    Safe to repeat. If an archive cannot be built, the command prints the reason and continues.
    """
    from fanout.jvm import class_archive, jars  # noqa: PLC0415

    jars.ensure()
    for program in class_archive.PROGRAMS:
        try:
            class_archive.ensure(program)
        except errors.LocalStackError as exc:  # the programs also run with a Java that cannot build an archive
            console.print(f"{exc}\n{program.title} runs without the class archive; its start takes longer.")


@app.command()
def archive(
    context: typer.Context,
    once: Annotated[
        bool, typer.Option("--once", help="Archive the records that are in Kafka now, run what was requested, then exit.")
    ] = False,
) -> None:
    """Copy dead letters and attempts to Postgres, run redrives and replays, and publish operational events.

    SIGTERM and Ctrl-C stop the command between two writes.
    """
    from fanout.archiver import main_loop  # noqa: PLC0415

    config = _settings(context)
    if hint := context.meta.pop(commands.WITHOUT_SETTINGS, None):
        commands.say(hint)  # now, because the archive waits for Postgres without an end
    main_loop.run(config, stop=commands.stop_event(), once=once)


@app.command()
def publish(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="NDJSON file; `-` is standard input.")] = None,
    topic: Annotated[str | None, typer.Option(help="Topic for all events. Default: by each event's type.")] = None,
    generate: Annotated[int, typer.Option(min=0, help="Generate this many events instead of reading a file.")] = 0,
    event_type: Annotated[str, typer.Option("--type", help="Type of the generated events.")] = "order.created",
    tenants: Annotated[int, typer.Option(min=1, help="Number of tenants of the generated events: tenant-1 to tenant-N.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the generated events.")] = 0,
    unchecked: Annotated[bool, typer.Option("--unchecked", help="Also publish events that the job would reject.")] = False,
    as_json: AsJson = False,
) -> None:
    """Publish events from NDJSON, or generated events. Missing topics are created.

    A wrong line stops the command. A line is wrong if it is not JSON, or if it has no type and --topic is not given. Without
    --unchecked, a line is also wrong if the job would reject it. After a wrong line, no line of a file is published, but the
    earlier lines of standard input are.
    """
    from delivery.config import plan_builder  # noqa: PLC0415
    from fanout.kafka import publishing  # noqa: PLC0415

    config = _settings(context)
    messages: Iterable[publishing.Message]
    if generate and (file is not None or topic is not None):
        raise typer.BadParameter(
            "--generate excludes FILE and --topic, so nothing was published: leave them out. --type names the topic"
        )
    if generate:
        rng = random.Random(seed)  # noqa: S311  # test data, not a secret
        messages = publishing.generated(generate, event_type=event_type, tenants=tenants, source=config.source, rng=rng)
    elif file is not None:
        layout = None if unchecked else plan_builder.layout_of(config)
        if str(file) == "-":
            messages = publishing.from_lines(sys.stdin.buffer, config.source, topic, layout)
        else:  # all lines are checked before the first is published
            try:
                lines = file.read_bytes().splitlines()
            except OSError as exc:
                problem = f"cannot be read ({exc.strerror}), so nothing was published: name a readable file"
                raise errors.RegistrationError(str(file), problem) from exc
            messages = list(publishing.from_lines(lines, config.source, topic, layout))
    else:
        raise typer.BadParameter("no events are given, so nothing was published: name an NDJSON file, or add --generate N")
    published = publishing.publish_all(config, messages)
    if as_json:
        _print_json({"published": sum(published.values()), "topics": published})
    elif not published:
        console.print("nothing was published, because the input has no event: give it one event a line")
    else:
        _print_table([{"topic": name, "events": count} for name, count in sorted(published.items())])


@app.command()
def doctor(context: typer.Context, as_json: AsJson = False) -> None:
    """Check everything that the platform needs, and show how to repair each fault.

    Exit code 1: there is a fault. Exit code 2: a setting is wrong, and nothing was checked.
    """
    from fanout.admin import diagnosis  # noqa: PLC0415

    findings = diagnosis.examine(_settings(context))
    if as_json:
        _print_json([finding.document() for finding in findings])
    else:
        for finding in findings:
            mark = "[green]ok[/]" if finding.is_fine else "[red]!![/]"
            console.print(f"{mark}  {finding.subject}: {rich.markup.escape(finding.text)}", markup=True)
    raise typer.Exit(0 if all(finding.is_fine for finding in findings) else 1)


@app.command()
def reconcile(
    context: typer.Context,
    since: Annotated[
        str | None,
        typer.Option(help="Only events handled at or after this time: 24h (ago), or 2026-05-01T10:00Z. Default: all."),
    ] = None,
    max_wait: Annotated[
        str, typer.Option(help="Longest max_wait_s of all endpoints. An event that waits longer for its batch is a finding.")
    ] = "24h",
    settle: Annotated[
        str,
        typer.Option(
            help="Do not judge records newer than this, because a running job may still be writing about them. Use 0s only "
            "when the job is stopped."
        ),
    ] = "10s",
    as_json: AsJson = False,
) -> None:
    """Prove from the topics that due deliveries = delivered + pending + dead-lettered + skipped.

    Exit code 1: there are findings, or a topic cannot be read. Exit code 2: nothing was checked, because the topics have no
    record of any lane in this time, a topic that the job writes is missing, or a setting is wrong.
    """
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
    raise typer.Exit(proof.exit_code)


@app.command("config")
def config_(context: typer.Context, as_json: AsJson = False) -> None:
    """Show every setting, its present value and its meaning. Secrets are starred out."""
    loaded = _settings(context)
    rows = [
        {
            "setting": name,
            "value": str(getattr(getattr(loaded, name.split(".")[0]), name.split(".")[1])),
            "meaning": " ".join(settings.meaning(name).split()),
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
    """Run the command. Print a FanoutError and its notes without a traceback.

    The exit code is 2 for a SettingsError, and 1 for other errors.
    """
    commands.escape_unencodable()
    try:
        app()
    except errors.FanoutError as exc:
        commands.say("\n".join([f"fanout: {exc}", *getattr(exc, "__notes__", ())]))
        sys.exit(2 if isinstance(exc, errors.SettingsError) else 1)


if __name__ == "__main__":
    main()
