"""What `fanout doctor` says of the interpreter."""

import sys
import sysconfig

import pytest

from delivery import settings
from fanout import diagnosis


@pytest.mark.parametrize(
    ("prefix", "arguments", "is_told"),
    [
        ("/home/somebody/.pyenv/versions/3.11.7", "'--enable-shared'", True),
        ("/usr/local", "'--enable-optimizations' '--with-lto'", False),  # the official image
        ("/usr", "'--enable-shared'", False),  # the distribution's says nothing of it in its arguments
    ],
)
def test_an_interpreter_compiled_without_optimisation_is_told_and_is_no_fault(prefix, arguments, is_told, monkeypatch):
    monkeypatch.setattr(sys, "base_prefix", prefix)
    monkeypatch.setattr(sysconfig, "get_config_var", {"CONFIG_ARGS": arguments}.get)
    [found] = diagnosis._findings(settings.Settings(), {"python": diagnosis._python})
    assert (found.is_fine, "--enable-optimizations" in found.text) == (True, is_told)
