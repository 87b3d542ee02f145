"""Fetch a model's files from the hub: safetensors only, sizes checked first, every failure its own sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from mha_core.catalogue import (
    ModelError,
    ModelGatedError,
    ModelNotFoundError,
    ModelOfflineError,
    ModelUnsupportedError,
    require_memory,
)


def hub_folder(name: str, wanted: Sequence[str], report: Callable[[str], None]) -> Path:
    """The local folder of a hub model, downloaded first where it is not here yet.

    Args:
        name: "owner/model" or "model", with "@revision" if wanted.
        wanted: file patterns; files in subfolders are never taken.

    Raises:
        ModelError: of the kind that says what is wrong (not found, gated, offline, unsupported, too large).
    """
    repo, _, revision = name.partition("@")
    arguments: dict[str, Any] = {
        "repo_id": repo, "revision": revision or None, "allow_patterns": list(wanted), "ignore_patterns": ["*/*"],
    }  # fmt: skip
    try:
        report(f"Looking up {repo}")
        _check(repo, revision or None)
        report(f"Fetching {repo}")
        return Path(snapshot_download(**arguments))
    except ModelError:
        raise
    except GatedRepoError:
        raise ModelGatedError(
            f"{repo} is gated: its owner asks for consent first. Accept the terms on the model's page, log in on this "
            "machine with a token, and try again; or choose another model."
        ) from None
    except HFValidationError:
        raise ModelNotFoundError(
            f"{repo!r} is no name that a hub model can have; write owner/model, as on its page."
        ) from None
    except RevisionNotFoundError:
        raise ModelNotFoundError(
            f"{repo} has no revision {revision!r}; leave it out, or name one that exists."
        ) from None
    except RepositoryNotFoundError:
        raise ModelNotFoundError(
            f"The hub has no model {repo!r} (or it is private). Check the spelling: owner/model, as on its page."
        ) from None
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, HfHubHTTPError, httpx2.HTTPError, OSError):
        return _already_here(repo, arguments)


def _already_here(repo: str, arguments: dict[str, Any]) -> Path:
    """The files from an earlier download, when the hub does not answer."""
    try:
        return Path(snapshot_download(**arguments, local_files_only=True))
    except (OSError, ValueError):
        raise ModelOfflineError(
            f"{repo} is not on this machine and the hub cannot be reached. Check the network and try again; the "
            "packaged models and local folders work without one."
        ) from None


def _check(repo: str, revision: str | None) -> None:
    """Refuse before downloading what could not be used."""
    info = HfApi().model_info(repo, revision=revision, files_metadata=True, timeout=20)
    top = [s for s in info.siblings or [] if "/" not in s.rfilename]
    weights = [s for s in top if s.rfilename.endswith(".safetensors")]
    if not weights:
        raise ModelUnsupportedError(
            f"{repo} has no .safetensors file. Headscope loads no other kind of weights, since pickled ones can run "
            "code; look for a version of the model in safetensors."
        )
    parameters = getattr(info.safetensors, "total", None)
    n_bytes = 4 * parameters if parameters else sum(s.size or 0 for s in weights)
    require_memory(n_bytes, repo)
