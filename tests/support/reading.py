"""Read examples from the documents, for tests that run the examples."""

import re
import textwrap
from pathlib import Path

from tests.support import certificates

ROOT = Path(__file__).parents[2]


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


def registering():
    """Return the manifest in docs/registering.md, which has every field. Real PEM replaces the dots of the example."""
    [example] = blocks("docs/registering.md", "yaml")
    for kind, pem in (("CERTIFICATE", certificates.issue("client").pem), ("PRIVATE KEY", certificates.issue("client").key)):
        dots = rf"( +)-----BEGIN {kind}-----\n +…\n +-----END {kind}-----\n"
        example = re.sub(dots, lambda found, pem=pem: textwrap.indent(pem, found[1]), example)
    return example


def holds(documented, answered, where="answer"):
    """Assert that an answer has everything that the document shows; `…` stands for any text."""
    if isinstance(documented, dict):
        for name, value in documented.items():
            holds(value, answered[name], f"{where}.{name}")
    elif isinstance(documented, list):
        assert len(documented) == len(answered), where
        for number, value in enumerate(documented):
            holds(value, answered[number], f"{where}[{number}]")
    elif isinstance(documented, str):
        assert re.fullmatch(re.escape(documented).replace("…", ".+"), answered), where
    else:
        assert documented == answered, where
