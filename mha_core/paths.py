"""Where files that come with Headscope are found."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def asset(name: str) -> Path:
    """The path of a file in `assets/`, in a checkout (beside the package) or installed (inside it).

    Parameters
    ----------
    name:
        A path relative to `assets/`, such as `"maps.js"`.

    Raises
    ------
    FileNotFoundError
        When the file is in neither place.
    """
    for folder in (_PACKAGE.parent / "assets", _PACKAGE / "assets"):
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(
        f"Headscope's file {name!r} was found neither in assets/ beside mha_core nor in mha_core/assets/. "
        "The installation is incomplete: install Headscope again, or run it from a full checkout."
    )
