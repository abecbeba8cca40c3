"""What the server's sources say of its settings, metrics and limits, read for
the tests that hold the files of deploy/ against them.

Every reader fails when the source no longer looks as it expects: a test that
compares with nothing would always pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Setting:
    """One of src/config/raw.rs; the numbers are None for texts, lists and switches. One that may be a number or the
    word `auto` has bounds and no default.
    """

    name: str
    default: int | None = None
    least: int | None = None
    most: int | None = None
    switch: bool = False

    @property
    def variable(self) -> str:
        return f"DICHROIC_{self.name.upper()}"


def settings() -> dict[str, Setting]:
    """Every setting, in the order of the help."""
    source = _source("config/raw.rs")
    declared = re.search(r"pub const SETTINGS: \[Setting; (\d+)\] = \[(.*?)\n\];", source, re.DOTALL)
    assert declared, "SETTINGS is not where it was"
    found = {}
    for line in declared[2].splitlines():
        text = line.strip()
        if not text or text.startswith("//"):
            continue
        number = re.fullmatch(r'number\("(\w+)", ([\d_]+), ([\d_]+), ([\d_]+)\),', text)
        either = re.fullmatch(r'number_or_auto\("(\w+)", ([\d_]+), ([\d_]+)\),', text)
        other = re.fullmatch(r'(?:text\("(\w+)"\)|Setting \{ name: "(\w+)", kind: Kind::(List|Switch) \}),', text)
        assert number or either or other, f"cannot read the setting {text!r}"
        if either:
            found[either[1]] = Setting(either[1], None, *(int(value.replace("_", "")) for value in either.groups()[1:]))
        elif number:
            found[number[1]] = Setting(number[1], *(int(value.replace("_", "")) for value in number.groups()[1:]))
        else:
            name = other[1] or other[2]
            found[name] = Setting(name, switch=other[3] == "Switch")
    assert len(found) == int(declared[1])
    fields = re.search(r"struct RawConfig \{(.*?)\n\}", source, re.DOTALL)
    assert fields and list(found) == re.findall(r"pub\(super\) (\w+): Option<", fields[1])
    return found


def default(name: str) -> int:
    """The default of a setting that is a number."""
    value = settings()[name].default
    assert value is not None
    return value


def text_defaults() -> dict[str, str]:
    """The defaults of the settings that are no numbers and have one, from the help."""
    help_ = _source("config/raw.rs")
    found = {}
    for name in [setting.name for setting in settings().values() if setting.default is None]:
        stated = re.search(rf"\[default: ([^\]]*)\]\s*(?:///\s*)?\[env: DICHROIC_{name.upper()}\]", help_)
        if stated:
            found[name] = stated[1]
    assert set(found) == set(text_settings()) - secrets()
    return found


def secrets() -> set[str]:
    """Settings that hold a secret: they have no flag and no default."""
    declared = re.search(r"pub const SECRETS: \[&str; (\d+)\] = \[(.*?)\];", _source("config/raw.rs"))
    assert declared, "SECRETS is not where it was"
    found = set(re.findall(r'"(\w+)"', declared[2]))
    assert len(found) == int(declared[1])
    return found


def text_settings() -> list[str]:
    return [setting.name for setting in settings().values() if setting.default is None]


@dataclass(frozen=True)
class Metric:
    kind: str
    labels: frozenset[str]

    def series(self, name: str) -> set[str]:
        return {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if self.kind == "histogram" else {name}


def metrics() -> dict[str, Metric]:
    """Every metric of src/telemetry/metrics.rs by its full name, those of the process too."""
    source = _source("telemetry/metrics.rs")
    namespace = re.search(r'Registry::new_custom\(Some\("(\w+)"\.into\(\)\), None\)', source)
    shared = dict(re.findall(r"const (\w+): &\[&str\] = &\[(.*?)\];", source))
    assert namespace
    made = re.findall(
        r'make\s*\.(counters|gauges|gauge|histograms|histogram)\(\s*"(\w+)",\s*"[^"]*"(?:,\s*(&\[[^\]]*\]|[A-Z]+))?',
        source,
    )
    assert len(made) == len(re.findall(r"\bmake\s*\.\w+\(", source)) > 10, "a metric is made in a way unknown here"
    found = {}
    for kind, name, labels in made:
        several = kind.endswith("s")
        assert several == bool(labels), name
        listed = shared.get(labels, labels)
        found[f"{namespace[1]}_{name}"] = Metric(kind.rstrip("s"), frozenset(re.findall(r'"(\w+)"', listed)))
    process = re.findall(r'\("(counter|gauge)", "(process_\w+)"\)', source)
    assert len(process) == 7, "the list of the process's metrics is not where it was"
    return found | {name: Metric(kind, frozenset()) for kind, name in process}


def label_values(name: str) -> set[str]:
    """A closed set of values of a label, such as TASKS."""
    listed = re.search(rf"pub const {name}: \[&str; \d+\] =\s+\[(.*?)\];", _source("telemetry/metrics.rs"))
    assert listed, f"{name} is not where it was"
    return set(re.findall(r'"(\w+)"', listed[1]))


def constant(path: str, name: str) -> int:
    """A number such as `16 * 1024 * 1024` from a source file."""
    value = re.search(rf"const {name}: \w+ = ([\d_ *]+);", _source(path))
    assert value, f"{name} is not in {path}"
    product = 1
    for factor in value[1].split("*"):
        product *= int(factor.strip().replace("_", ""))
    return product


def error_codes() -> dict[str, tuple[int, str]]:
    """The status and the type of every error code of src/http/error.rs."""
    source = _source("http/error.rs")
    types = dict(re.findall(r'#\[serde\(rename = "(\w+_error)"\)\]\s+(\w+),', source))
    names = {variant: word for word, variant in types.items()}
    rows = re.findall(r'=> \((\d{3}), (\w+), "(\w+)", ', source)
    assert len(rows) > 20 and len(names) == 6
    return {code: (int(status), names[kind]) for status, kind, code in rows}


def error_fields() -> dict[str, set[str | None]]:
    """The values that `param` may have with each code; None where it may be null."""
    source = _source("http/error.rs")
    listed = re.search(r"enum Param \{(.*?)\}", source, re.DOTALL)
    assert listed
    params = {name: _snake_case(name) for name in re.findall(r"\w+", listed[1])}
    found: dict[str, set[str | None]] = {}
    for code, field in re.findall(r'=> \(\d{3}, \w+, "(\w+)", (None|Some\(\w+\)), ', source):
        named = field.removeprefix("Some(").rstrip(")")
        here = {None} if field == "None" else {params[named]} if named in params else set(params.values())
        found.setdefault(code, set()).update(here)
    assert set(found) == set(error_codes())
    return found


def operations() -> dict[str, str]:
    """The path of every operation by the name of its scope."""
    source = _source("domain/operation.rs")
    pairs = re.findall(r'Self::(\w+) => "([\w/]+)"', source)
    scopes = dict(pairs[: len(pairs) // 2])
    found = {scopes[name]: path for name, path in pairs[len(pairs) // 2 :]}
    assert len(found) == 5 and all(path.startswith("/v1/") for path in found.values())
    return found


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def cargo_version() -> str:
    return re.search(r'^version = "([^"]+)"', (ROOT / "Cargo.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]


def model_ids() -> list[str]:
    ids = re.findall(r'Self::\w+ => "([\w.-]+)"', _source("domain/model_id.rs"))
    assert len(ids) == 4
    return ids


def _source(path: str) -> str:
    return read(f"src/{path}")


def read(path: str) -> str:
    """A file of the checkout."""
    return (ROOT / path).read_text(encoding="utf-8")
