"""Read the settings once, at the start, from TOML files and `FANOUT_…` environment variables.

Precedence, highest first:

1. The environment: `FANOUT_<AREA>_<FIELD>`, or `FANOUT_<AREA>_<FIELD>_FILE` with the path of a file that holds the value. With
   a file, a container's description shows no secret.
2. The TOML files. A file that `--config` names, or else `FANOUT_CONFIG`, is the only one that is read. If no file is named, the
   files are `./fanout.toml`, and below it in precedence `./.fanout/local.toml`, which `fanout up` writes.
3. The defaults of `delivery.config.settings`.

An unknown setting or area is an error. The message names the known setting or area with the nearest name.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pydantic

from delivery import errors
from delivery.config import refused_values, settings

LOCAL_FILE = Path(".fanout/local.toml")
"""Settings file that `fanout up` writes below the current folder."""
DEFAULT_FILES = (LOCAL_FILE, Path("fanout.toml"))
"""Settings files of the current folder that are read if no file is named. The later file overrides the earlier one."""
PREFIX = "FANOUT_"
"""Prefix of the environment variables that are settings."""
NO_SETTINGS = frozenset({f"{PREFIX}CONFIG", f"{PREFIX}IMAGE"})
"""Variables with the prefix that are no settings: the settings file, and the image of `deploy/compose`."""
IN_A_FILE = "_file"
"""Suffix of a variable, in lower case. The variable's value is the path of a file with the setting's value."""


class _Layer(NamedTuple):
    """The settings of one file, or of the environment."""

    areas: Mapping[str, Any]
    """The settings by area, unchecked."""
    file: str = ""
    """The path of the file. Empty: the environment."""
    variables: Mapping[tuple[str, str], str] = {}
    """The name of the environment variable, by area and field. Empty for a file."""


def read(environ: Mapping[str, str], config: Path | None = None, root: Path = Path()) -> settings.Settings:
    """Return the checked settings. Raise a SettingsError that names all wrong settings.

    Raise a SettingsError about one fault alone in two cases. (1) The named file is missing, or a file is unreadable or not
    TOML. (2) The file of a variable `…_FILE` is empty or unreadable, or the environment also has the variable without `_FILE`.

    `config` is the file named on the command line. None: the file that `FANOUT_CONFIG` names, or else the default files in the
    folder `root`. With a named file, the default files are not read. If they were, a file that `fanout up` once wrote could
    open the address guard of a production job.
    """
    named = config or (Path(environ[f"{PREFIX}CONFIG"]) if environ.get(f"{PREFIX}CONFIG") else None)
    if named is not None and not _is_file(named):
        raise errors.SettingsError(
            f"there is no settings file {named}, so nothing was started: name an existing one with --config or {PREFIX}CONFIG"
        )
    files = [root / name for name in DEFAULT_FILES] if named is None else [named]
    layers = [_Layer(_parsed(path), str(path)) for path in files if _is_file(path)] + [_from_environment(environ)]
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        _merge(merged, layer.areas)
    try:
        return settings.Settings.model_validate(merged)
    except pydantic.ValidationError as exc:
        raise errors.SettingsError("\n".join(_explain(error, layers) for error in exc.errors(include_url=False))) from None


def finds_nothing(environ: Mapping[str, str], root: Path = Path()) -> bool:
    """Return True if `read` with these arguments, and without `config`, finds no settings file and no setting in `environ`."""
    variables = {name for name, value in environ.items() if name.startswith(PREFIX) and (value or name not in NO_SETTINGS)}
    return variables <= {f"{PREFIX}IMAGE"} and not any(_is_file(root / name) for name in DEFAULT_FILES)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as a folder that this login may not search: the attempt to read the file names the cause
        return True


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as exc:
        raise errors.SettingsError(
            f"the settings file {path} is not TOML: {exc}. Correct the file; nothing was started"
        ) from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise errors.SettingsError(
            f"the settings file {path} cannot be read: {_cause(exc)}. Correct the file, or make it readable to this "
            "login; nothing was started"
        ) from None


def _merge(into: dict[str, dict[str, Any]], layer: Mapping[str, Any]) -> None:
    for area, fields in layer.items():
        if not isinstance(fields, Mapping):
            into[area] = fields
        elif isinstance(known := into.setdefault(area, {}), dict):  # a wrong value stays, and is refused by its name
            known.update(fields)


def _from_environment(environ: Mapping[str, str]) -> _Layer:
    areas: dict[str, dict[str, str]] = {}
    variables: dict[tuple[str, str], str] = {}
    known = settings.known_names()
    for name, given in environ.items():
        if not name.startswith(PREFIX) or name in NO_SETTINGS:
            continue
        area, field = _area_and_field(name.removeprefix(PREFIX).lower())
        value = given
        if field.endswith(IN_A_FILE) and f"{area}.{field}" not in known:
            field, value = field.removesuffix(IN_A_FILE), _content_of(Path(given), name)
        if other := variables.get((area, field)):
            raise errors.SettingsError(
                f"the environment has {other} and {name}, which are the same setting: keep one of them. Nothing was started"
            )
        areas.setdefault(area, {})[field] = value
        variables[area, field] = name
    return _Layer(areas, variables=variables)


def _area_and_field(name: str) -> tuple[str, str]:
    """Return the area and the field of an environment variable. `name` is in lower case, without `FANOUT_`.

    A known area, also one of two words such as `schema_registry`, is recognised by its name. An unknown area is the first word.
    """
    for area in settings.Settings.model_fields:
        if name.startswith(f"{area}_"):
            return area, name.removeprefix(f"{area}_")
    area, _, field = name.partition("_")
    return area, field


def _content_of(path: Path, name: str) -> str:
    try:
        value = path.read_text().removesuffix("\n")
    except (OSError, UnicodeDecodeError) as exc:
        raise errors.SettingsError(
            f"{name} names {path}, which cannot be read: {_cause(exc)}. Correct the path, or make the file readable to this "
            "login; nothing was started"
        ) from None
    if not value:
        raise errors.SettingsError(
            f"{name} names {path}, which is empty: write the value of the setting into it. Nothing was started"
        )
    return value


def _cause(exc: OSError | UnicodeDecodeError) -> str:
    return exc.strerror or "no cause is known" if isinstance(exc, OSError) else "it is not text in UTF-8"


def _explain(error: Any, layers: Sequence[_Layer]) -> str:
    """Turn one pydantic error into a line that names the setting, the file or variable that it comes from, and the problem.

    For an unknown setting or area, the line also names the known one with the nearest name.
    """
    location = [str(part) for part in error["loc"]]
    name = ".".join(location)
    setting = f"setting {name}{_source(location, layers)}"
    if error["type"] != "extra_forbidden":
        problem = refused_values.explained(error, {})
        return f"{setting}: {problem}{'' if problem.endswith('?') else '.'} Nothing was started"
    known = settings.known_names() if len(location) > 1 else list(settings.Settings.model_fields)
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"{setting} is not known, so nothing was started; did you mean {nearest[0]}? `fanout config` lists all settings"


def _source(location: list[str], layers: Sequence[_Layer]) -> str:
    """Return the file or the variables that the setting or the whole area comes from, in brackets.

    Empty: the value is a default, or settings of the area do not fit each other.
    """
    area, *field = location[:2]
    for layer in reversed(layers):
        if area in layer.areas and _has(layer.areas[area], area, field):
            names = [name for (of, at), name in layer.variables.items() if of == area and field in ([], [at])]
            return f" ({layer.file or ', '.join(names)})"
    return ""


def _has(fields: Any, area: str, field: list[str]) -> bool:
    """Return True if `fields`, the content of one layer for `area`, causes an error about `field`.

    An empty `field` stands for the whole area.
    """
    if field:
        return isinstance(fields, Mapping) and field[0] in fields
    return area not in settings.Settings.model_fields or not isinstance(fields, Mapping)
