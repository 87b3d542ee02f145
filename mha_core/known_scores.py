"""How well the packaged models do on the built-in tasks with nothing switched off, measured once.

`python -m mha_core.known_scores` measures them again and writes `assets/task-scores.json`. A score is found by the
hash of the model's file and the hash of the prompts, so that one which no longer belongs to either is not shown.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from mha_core.catalogue import DATE_TRANSLATOR, ModelError
from mha_core.evaluation import FIRST, Evaluation, evaluate
from mha_core.loading import load_model
from mha_core.model import Model
from mha_core.paths import asset
from mha_core.task_sets import offered, task_entries
from mha_core.tasks import Task

FILE = "task-scores.json"
MODELS = ("smollm2-135m-instruct", "all-minilm-l6-v2", DATE_TRANSLATOR.name)
_SECOND = {"word": "logit_diff", "similarity": "auc", "sequence": "logit_diff"}


@dataclass(frozen=True)
class Score:
    """A mean with its 95 % interval over templates. metric: of `mha_core.scores.METRICS`."""

    metric: str
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class KnownScore:
    """The clean score of a model on all prompts of a task.

    sha256: of the model's file. prompts: hash of the prompts. scores: accuracy, and a finer measure. sample: the finer
    measure (similarity: cosine_diff) on the first prompts of the task's own sample, for a quick check.
    """

    model: str
    title: str
    sha256: str
    task: str
    prompts: str
    n: int
    templates: int
    scores: tuple[Score, ...]
    sample: float

    @property
    def accuracy(self) -> float:
        """Share of prompts whose target is above the foil."""
        return self.scores[0].mean

    def __str__(self) -> str:
        parts = [f"{s.metric.replace('_', ' ')} {s.mean:.3f} [{s.low:.3f}, {s.high:.3f}]" for s in self.scores]
        return f"{self.title}: {', '.join(parts)} ({self.n:,} prompts, {self.templates} templates)"


def described_tasks() -> str:
    """The built-in tasks as lines: name, question, the models that it is for, and how those do unchanged."""
    lines = []
    for entry in task_entries():
        lines += [f"  {entry.name:16} {entry.asks}", f"{'':18} for {entry.needs}"]
        lines += [f"{'':18} {s.title}: right in {s.accuracy:.1%} of {s.n:,}" for s in known_scores()
                  if s.task == entry.name]  # fmt: skip
    return "\n".join(lines)


def prompts_hash(task: Task) -> str:
    """SHA-256 over everything that a task asks, in hexadecimal."""
    asked = [[p.text, p.target, p.foil, p.template, dict(p.slices)] for p in task.prompts]
    text = json.dumps([task.question, task.balanced, asked], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def known_score(model: Model, task: Task) -> KnownScore | None:
    """What is known of exactly these prompts and this model's file; None: not measured."""
    key = (model.details.sha256, task.name, prompts_hash(task))
    return next((score for score in known_scores() if (score.sha256, score.task, score.prompts) == key), None)


@lru_cache(maxsize=1)
def known_scores() -> tuple[KnownScore, ...]:
    """All scores in the file, by model and task."""
    rows = json.loads(asset(FILE).read_text("utf-8"))["scores"]
    return tuple(KnownScore(**{**row, "scores": tuple(Score(**score) for score in row["scores"])}) for row in rows)


def measured(model: Model, task: Task) -> KnownScore:
    """A model's score on all prompts of a task."""
    result = evaluate(model, task, ())
    second = _SECOND[task.question]
    scores = []
    for metric in ("accuracy", second):
        found = result.clean_score(metric)
        scores.append(Score(metric, round(found.mean, 4), round(found.low, 4), round(found.high, 4)))
    return KnownScore(
        model.name, model.details.title, model.details.sha256, task.name, prompts_hash(task), result.n,
        len(set(result.clusters)), tuple(scores), sample_score(result),
    )  # fmt: skip


def sample_score(result: Evaluation) -> float:
    """The finer measure's mean over the first prompts of an evaluation."""
    metric = "cosine_diff" if result.task.question == "similarity" else _SECOND[result.task.question]
    values = [row[metric] for row in result.clean[:FIRST]]
    return round(sum(values) / len(values), 4)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every packaged model on every task that it is offered, and write the file after each. A score that is
    still of the same prompts and model stays, unless all are to be measured again.
    """
    parser = argparse.ArgumentParser(prog="python -m mha_core.known_scores", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("assets") / FILE, help="default: assets/ of this checkout")
    parser.add_argument("--again", action="store_true", help="measure all again")
    chosen = parser.parse_args(arguments)
    scores: list[KnownScore] = []
    for name in MODELS:
        try:
            model = load_model(name)
        except ModelError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        for task in offered(model):
            scores.append((None if chosen.again else known_score(model, task)) or measured(model, task))
            sys.stdout.write(f"{task.name}: {scores[-1]}\n")
            text = json.dumps({"scores": [asdict(score) for score in scores]}, indent=1, ensure_ascii=False)
            chosen.out.write_text(text + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
