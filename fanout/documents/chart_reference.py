"""Generate two parts of the Helm chart: the settings in values.schema.json, and the table of values in README.md.

Runs in `python -m fanout.documents.generate` and the tests. A test fails when a file and its source differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from delivery.config import settings

OF_THE_CHART = frozenset(
    (
        *("database.url", "api.database_url", "keys.ring", "kafka.sasl_password", "schema_registry.password"),  # from Secrets
        *("metrics.host", "metrics.port", "api.host", "api.port"),  # the ports of the pods
        "api.publishing",  # serve.publishing
        *("spark.checkpoint", "spark.checkpoint_lease", "scaling.min_executors", "scaling.max_executors"),  # of each driver
    )
)
"""Settings that the chart sets itself, or takes from Secrets. The chart's value `config` does not accept them."""
PASSED_ON = ("kafka.spark_options", "kafka.librdkafka_options", "spark.conf")
"""Settings that pass options to Spark and librdkafka. The schema permits every option, except those of NOT_FOR_A_CONFIG_MAP."""
NOT_FOR_A_CONFIG_MAP = "([Pp]assword|[Ss]ecret|[Jj]aas|[Ss]ession[.]token|ssl[.]key[.]pem|ssl[.]keystore[.]key)"
"""Pattern of the names of options that hold a secret. The schema refuses these options: `config` becomes a ConfigMap. The last
two options of the pattern hold the text of a private key, in librdkafka and in the Java client. Use a file of
`certificates.secret` instead."""
BEGIN, END = "<!-- values: generated from values.yaml by `make docs` -->", "<!-- end of the values -->"
"""Lines of README.md before and after the generated table."""


def schema(chart: Path) -> str:
    """Return the text of values.schema.json in the folder `chart`, with the property `config` generated from the code.

    `config` has the schemas of all settings, except OF_THE_CHART.
    """
    document = json.loads((chart / "values.schema.json").read_text())
    document["properties"]["config"] = {"type": "object", "additionalProperties": False, "properties": _areas()}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _areas() -> dict[str, Any]:
    areas = {}
    for name, area in settings.areas().items():
        fields = area.model_json_schema()["properties"]
        taken = {field: _plain(fields[field]) for field in sorted(fields) if f"{name}.{field}" not in OF_THE_CHART}
        for field, known in taken.items():
            if f"{name}.{field}" in PASSED_ON:
                known["propertyNames"] = {"not": {"pattern": NOT_FOR_A_CONFIG_MAP}}
        areas[name] = {"type": "object", "additionalProperties": False, "properties": taken}
    return areas


def _plain(field: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a setting without the keywords `title`, `default`, `pattern` and `format`."""
    return {name: value for name, value in field.items() if name not in {"title", "default", "pattern", "format"}}


class Value(NamedTuple):
    """A value of the chart: a row of the table in the chart's README.md."""

    path: str
    default: str
    meaning: str


def readme(chart: Path) -> str:
    """Return the text of README.md in the folder `chart`, with the values of values.yaml in its table."""
    head, _, rest = (chart / "README.md").read_text().partition(BEGIN)
    rows = [f"| `{value.path}` | {value.default} | {value.meaning} |" for value in values((chart / "values.yaml").read_text())]
    table = "\n".join(["| value | default | meaning |", "|---|---|---|", *rows])
    return f"{head}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


def values(text: str) -> list[Value]:
    """Return each value in a values.yaml with the comment above it, in order.

    A mapping in block style is listed, without a default, only if it has a comment. The values below it follow.
    """
    document = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(document, yaml.MappingNode), "values.yaml is a mapping"  # noqa: S101
    return list(_values(document, "", text, text.splitlines()))


def _values(mapping: yaml.MappingNode, parent: str, text: str, lines: list[str]) -> Iterator[Value]:
    for key, node in mapping.value:
        path = f"{parent}{key.value}"
        meaning = _comment_above(lines, key.start_mark.line).replace("|", "\\|")
        if isinstance(node, yaml.MappingNode) and not node.flow_style:
            if meaning:
                yield Value(path, "", meaning)
            yield from _values(node, path + ".", text, lines)
        else:
            yield Value(path, f"`{text[node.start_mark.index : node.end_mark.index].strip()}`", meaning)


def _comment_above(lines: list[str], at: int) -> str:
    words: list[str] = []
    while at > 0 and lines[at - 1].lstrip().startswith("#"):
        at -= 1
        words.insert(0, lines[at].strip().removeprefix("#").strip())
    return " ".join(words)
