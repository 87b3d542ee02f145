"""What has been measured, kept on disk: a second look is instant, and work that was stopped goes on where it was.

Rows are named by hashes of what they depend on (model file, plan, prompt); no text is kept. A store that cannot be read
or written costs measuring again, never an error.
"""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mha_core.batched import Row
from mha_core.catalogue import cache_folder
from mha_core.head_scores import HeadScores
from mha_core.interventions import Interventions
from mha_core.jobs import HeadsJob, Job, PlanJob, Result
from mha_core.model import Model
from mha_core.questions import Question

_FORMAT = 1  # changed whenever the same names would mean other numbers
MAX_BYTES = 256 * 2**20
_TABLES = """
CREATE TABLE IF NOT EXISTS results (key TEXT, item TEXT, value BLOB, PRIMARY KEY (key, item)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS used (key TEXT PRIMARY KEY, at REAL) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class ResultStore:
    """Results by (key, item) in one file. max_bytes: beyond it, what was used longest ago goes."""

    path: Path
    max_bytes: int = MAX_BYTES

    def get(self, key: str, items: Sequence[str]) -> dict[str, bytes]:
        """Those of the items that are there."""
        try:
            with self._open() as connection:
                rows = connection.execute(
                    "SELECT item, value FROM results WHERE key = ? AND item IN (SELECT value FROM json_each(?))",
                    (key, json.dumps(list(items))),
                )
                found = dict(rows.fetchall())
                if found:
                    _mark_used(connection, key)
        except (OSError, sqlite3.Error):
            return {}
        return found

    def put(self, key: str, values: Mapping[str, bytes]) -> None:
        """Keep values, over those that are there."""
        try:
            with self._open() as connection:
                connection.executemany(
                    "INSERT OR REPLACE INTO results VALUES (?, ?, ?)",
                    [(key, item, value) for item, value in values.items()],
                )
                _mark_used(connection, key)
                self._make_room(connection, key)
        except sqlite3.DatabaseError as error:
            if not isinstance(error, sqlite3.OperationalError):  # not a database any more: begin again
                self.path.unlink(missing_ok=True)
        except OSError:
            pass

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection of this call alone: servers and commands may use one file at the same time."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self.path, timeout=10)) as connection, connection:
            connection.executescript(_TABLES)
            yield connection

    def _make_room(self, connection: sqlite3.Connection, key: str) -> None:
        while _bytes_used(connection) > self.max_bytes:
            oldest = connection.execute("SELECT key FROM used WHERE key != ? ORDER BY at LIMIT 1", (key,)).fetchone()
            if oldest is None:
                return
            connection.execute("DELETE FROM results WHERE key = ?", oldest)
            connection.execute("DELETE FROM used WHERE key = ?", oldest)


def _mark_used(connection: sqlite3.Connection, key: str) -> None:
    connection.execute("INSERT OR REPLACE INTO used VALUES (?, ?)", (key, time.time()))


def _bytes_used(connection: sqlite3.Connection) -> int:
    """Pages in use; those that were freed are taken again."""
    names = ("page_count", "freelist_count", "page_size")
    used, free, size = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in names)
    return (used - free) * size


def default_store() -> ResultStore:
    """The store in the user's cache folder."""
    return ResultStore(cache_folder() / "results.sqlite")


@dataclass(frozen=True)
class Kept:
    """Finished jobs of one model, in a store. None: nothing is kept (a model without a file has no lasting name)."""

    store: ResultStore | None
    model_name: str

    def heads(self, job: HeadsJob) -> HeadScores | None:
        """A job's result, where it is kept."""
        if self.store is None:
            return None
        key, items = self._names(job)
        value = self.store.get(key, items).get(items[0])
        try:
            return None if value is None else _read(value, job)
        except (KeyError, ValueError, zipfile.BadZipFile):
            return None

    def rows(self, plan: Interventions, questions: Sequence[Question]) -> dict[int, Row]:
        """Which questions are kept under a plan: number -> row."""
        if self.store is None:
            return {}
        key, items = self._names(PlanJob(plan, tuple(questions)))
        found = self.store.get(key, items)
        return {number: json.loads(found[item]) for number, item in enumerate(items) if item in found}

    def put(self, job: Job, result: Result) -> None:
        """Keep what a job gave."""
        if self.store is None:
            return
        key, items = self._names(job)
        values = [_written(result)] if isinstance(result, HeadScores) else [json.dumps(row).encode() for row in result]
        self.store.put(key, dict(zip(items, values, strict=True)))

    def _names(self, job: Job) -> tuple[str, list[str]]:
        if isinstance(job, PlanJob):
            return _hash("plan", self.model_name, job.plan.to_json()), [_question(item) for item in job.questions]
        key = _hash("heads", self.model_name, job.kind, repr(job.reference))
        return key, [_hash(_question(job.question), *map(str, job.heads))]


def kept_for(model: Model, store: ResultStore | None) -> Kept:
    """A model's results in a store. Its name is that of its weights, so that another file never gives old numbers."""
    lasting = bool(model.details.sha256)
    return Kept(store if lasting else None, f"{model.details.sha256} {model.kind} {model.number_type}")


def _question(question: Question) -> str:
    """A name for what is asked: tokens and answers, however the prompt is called."""
    texts = [(item.tokens.ids, item.source.ids if item.source else None) for item in question.texts]
    return _hash(repr((texts, question.targets, question.foils, question.positions)))


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps([_FORMAT, *map(str, parts)]).encode()).hexdigest()[:32]


def _written(result: HeadScores) -> bytes:
    buffer = io.BytesIO()
    names = {f"heads.{name}": value for name, value in result.heads.items()}
    np.savez(buffer, clean=json.dumps(result.clean), **names)  # type: ignore[arg-type]
    return buffer.getvalue()


def _read(value: bytes, job: HeadsJob) -> HeadScores:
    with np.load(io.BytesIO(value), allow_pickle=False) as file:
        heads = {name.removeprefix("heads."): file[name] for name in file.files if name != "clean"}
        if any(len(scores) != len(job.heads) for scores in heads.values()):
            raise ValueError("Not of these heads.")
        return HeadScores(json.loads(str(file["clean"])), heads)
