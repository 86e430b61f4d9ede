"""Write the documents that are generated from the code, and parts of the chart. Then check the links of all documents.

Run: `python -m fanout.documents.generate docs`. A test fails when a file and the code differ.
"""

from __future__ import annotations

import sys
from pathlib import Path

from delivery.config import settings
from delivery.observability import metrics
from fanout.documents import chart_reference, folder_map, links, record_formats

HEAD = """\
# Configuration

<!-- Generated from delivery/config/settings.py by `make docs`. -->

Settings come from, highest first:

1. environment variables `FANOUT_<AREA>_<FIELD>`;
2. the TOML file that `--config` or `FANOUT_CONFIG` names. Where none is named: `./fanout.toml`, then `./.fanout/local.toml`,
   which `fanout up` writes;
3. the defaults below.

They are read once, at the start; an unknown or wrong one is an error that names the right one. `fanout config` shows what is in
force, `fanout doctor` whether it works.

```toml
[kafka]
bootstrap_servers = "kafka-1:9093,kafka-2:9093"
security_protocol = "SASL_SSL"
sasl_mechanism = "SCRAM-SHA-512"
sasl_username = "fanout"

[source]
topic_pattern = "events\\\\..+"
```

Secrets (`database.url`, `api.database_url`, `keys.ring`, `kafka.sasl_password`) come from a secret store: by
the environment, or by a file that it mounts, whose path the variable's name with `_FILE` gives
(`FANOUT_DATABASE_URL_FILE=/run/secrets/database_url`). `kubectl describe` and `docker inspect` show variables, and no files.
"""

METRICS_HEAD = """\
# Metrics

<!-- Generated from delivery/observability/metrics.py by `make docs`. -->

What `/metrics` serves of the driver and of all workers, of `fanout archive` and of `fanout serve`. [Operations](operations.md)
says what to watch, and `deploy/helm/fanout/files/dashboard.json` shows it. Labels are of closed sets, and of the operator's
topics; never a tenant, endpoint or URL of a customer. What workers do is counted when their task has finished and
the micro-batch's results are written: what a failed task had sent is not, and its second run is.
Counters begin at zero with each start of the process.

| metric | meaning |
|---|---|
"""


def configuration() -> str:
    """Return docs/configuration.md."""
    parts = [HEAD]
    for name, area in settings.areas().items():
        parts.append(f"\n## `[{name}]`\n\n{area.__doc__}\n\n| setting | default | meaning |\n|---|---|---|\n")
        for field, info in area.model_fields.items():
            default = info.get_default(call_default_factory=True)
            shown = default.get_secret_value() if hasattr(default, "get_secret_value") else default
            meaning = (info.description or "").replace("\n", " ").replace("|", "\\|")
            parts.append(f"| `{field}` | `{shown!r}` | {meaning} |\n")
    return "".join(parts)


def metrics_table() -> str:
    """Return docs/metrics.md."""
    return METRICS_HEAD + "".join(f"| `{name}` | {meaning} |\n" for name, meaning in metrics.declared().items())


def main(folder: Path) -> None:
    """Write the documents into `folder`, and those of the chart beside it. Exit with the links that lead nowhere."""
    root = folder.absolute().parent
    (folder / "configuration.md").write_text(configuration())
    (folder / "metrics.md").write_text(metrics_table())
    (folder / "record-formats.md").write_text(record_formats.document())
    (folder / "folders.md").write_text(folder_map.document(root))
    chart = root / "deploy" / "helm" / "fanout"
    for name, text in (("values.schema.json", chart_reference.schema(chart)), ("README.md", chart_reference.readme(chart))):
        (chart / name).write_text(text)
    broken = [f"{path.relative_to(root)}: {link}" for path in links.documents(root) for link in links.broken(path)]
    if broken:
        sys.exit("These links lead nowhere. Correct the path or the anchor:\n" + "\n".join(broken))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
