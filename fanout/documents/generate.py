"""Write the documents that are generated from the code, and parts of the chart. Then check the links of all documents.

Run: `python -m fanout.documents.generate docs`. A test fails when a file and the code differ.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from delivery.config import settings
from delivery.observability import metrics
from fanout.documents import chart_reference, folder_map, lane_pictures, links, record_formats
from subscriptions_db.api.contract import problem_types
from subscriptions_db.api.documents import problem_pages

HEAD = """\
# Configuration

<!-- Generated from delivery/config/settings.py by `make docs`. -->

The first of these sources that has a setting wins:

1. the environment variable `FANOUT_<AREA>_<FIELD>`;
2. the TOML file that `--config` or `FANOUT_CONFIG` names. If none is named, `./fanout.toml`, then `./.fanout/local.toml`,
   which `fanout up` writes;
3. the default below.

Each process reads its settings once, at its start. An unknown setting is an error that names the most similar one. A wrong
value is an error that says what is wrong. In both cases nothing starts.
`fanout config` shows the settings in effect, and `fanout doctor` checks them.

```toml
[kafka]
bootstrap_servers = "kafka-1:9093,kafka-2:9093"
security_protocol = "SASL_SSL"
sasl_mechanism = "SCRAM-SHA-512"
sasl_username = "fanout"

[source]
topic_pattern = "events\\\\..+"
```

The defaults in the tables are written as in TOML.

Take secrets from a secret store, in the environment or in a mounted file. The secrets are `database.url`, `api.database_url`,
`keys.ring`, `kafka.sasl_password`, `schema_registry.password`, and any passwords in the options of Kafka's clients. The
variable's name with `_FILE` names the file (`FANOUT_DATABASE_URL_FILE=/run/secrets/database_url`). Prefer files: `kubectl
describe` and `docker inspect` show variables.
"""

METRICS_HEAD = """\
# Metrics

<!-- Generated from delivery/observability/metrics.py by `make docs`. -->

The job, `fanout archive` and `fanout serve` serve these metrics at `/metrics`, if `metrics.port` is set. On one machine each of
them needs its own port. The job's driver serves those of all workers too.
[Operations](operations.md) says what to watch, and `deploy/helm/fanout/files/dashboard.json` shows every metric.

* Labels come from closed sets and from the operator's topics. They never name an endpoint or a URL of a customer. They
  name a tenant only where a topic's name does.
* A worker's counters count when its task has finished and the micro-batch's results are written. Requests of a failed task do
  not count; those of its second run do.
* Counters begin at zero with each start of the process.

| metric | meaning |
|---|---|
"""


def configuration() -> str:
    """Return the text of docs/configuration.md."""
    parts = [HEAD]
    for name, area in settings.areas().items():
        parts.append(f"\n## `[{name}]`\n\n{area.__doc__}\n\n| setting | default | meaning |\n|---|---|---|\n")
        for field, info in area.model_fields.items():
            default = in_toml(info.get_default(call_default_factory=True))
            meaning = (info.description or "").replace("\n", " ").replace("|", "\\|")
            parts.append(f"| `{field}` | `{default}` | {meaning} |\n")
    return "".join(parts)


def in_toml(default: Any) -> str:
    """Return the default of a setting as a TOML value. The JSON of texts, numbers, booleans, lists and empty tables is TOML."""
    return json.dumps(default.get_secret_value() if hasattr(default, "get_secret_value") else default, ensure_ascii=False)


def metrics_table() -> str:
    """Return the text of docs/metrics.md."""
    return METRICS_HEAD + "".join(f"| `{name}` | {meaning} |\n" for name, meaning in metrics.declared().items())


def main(folder: Path) -> None:
    """Write the documents into `folder`, and the generated parts of the chart. Then exit with 1 if links lead nowhere."""
    root = folder.absolute().parent
    (folder / "configuration.md").write_text(configuration())
    (folder / "metrics.md").write_text(metrics_table())
    (folder / "record-formats.md").write_text(record_formats.document())
    (folder / "problems.md").write_text(problem_pages.markdown_list())
    for code in problem_types.TYPES:
        (folder / "problems" / f"{code}.md").write_text(problem_pages.markdown(code))
    (folder / "folders.md").write_text(folder_map.document(root))
    (folder / lane_pictures.DOCUMENT).write_text(lane_pictures.document(root))
    chart = root / "deploy" / "helm" / "fanout"
    for name, text in (("values.schema.json", chart_reference.schema(chart)), ("README.md", chart_reference.readme(chart))):
        (chart / name).write_text(text)
    broken = [f"{path.relative_to(root)}: {link}" for path in links.documents(root) for link in links.broken(path)]
    if broken:
        sys.exit(
            "The documents are written, and these links lead nowhere. Correct the path or the anchor:\n" + "\n".join(broken)
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
