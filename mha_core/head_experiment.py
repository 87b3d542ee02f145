"""How many heads does a task need? Small attention layers of equal width, trained with 1, 2, 4, 8 and 16 heads.

The task asks for several relations at once. A sentence is `LENGTH` random symbols; at every position the model must
name the symbols that stand 1, 2, 5 and 11 places before it (around the end, as on a ring). A head makes one
distribution over positions, so that one head must mix what several can keep apart. With a single relation one head is
enough, and the experiment says so too.

The model is one `MultiHeadAttention` between an embedding (symbol + position) and a linear readout, without residual
stream and MLP: whatever it gets right, attention has fetched. It is trained in float32 with AdamW, seeded. What comes
out is reported, whatever it is.
"""

from __future__ import annotations

import base64
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mha_core.layer import MultiHeadAttention

SYMBOLS, LENGTH = 8, 16
SHIFTS = (1, 2, 5, 11)
HEADS = (1, 2, 4, 8, 16)
_TESTED = 512  # sentences that accuracy is measured on, none of them trained on by more than chance
_SNAPSHOTS = 9
_BATCH = 64
COMMAND = "python -m mha_core.head_experiment assets/head-experiment.json"


@dataclass(frozen=True)
class Settings:
    """What is trained. n_relations: how many of `SHIFTS` are asked for at once, 1 to 4.

    Raises:
        ValueError: what cannot be trained, in a sentence.
    """

    d_model: int = 32
    n_heads: tuple[int, ...] = HEADS
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 400
    n_relations: int = 4
    learning_rate: float = 3e-3

    def __post_init__(self) -> None:
        for heads in self.n_heads:
            if heads < 1 or self.d_model % heads:
                raise ValueError(f"d_model is {self.d_model} and does not divide into {heads} heads.")
        if not self.n_heads or not self.seeds or self.steps < _SNAPSHOTS:
            raise ValueError(f"Training needs heads, seeds and at least {_SNAPSHOTS} steps.")
        if not 1 <= self.n_relations <= len(SHIFTS):
            raise ValueError(f"n_relations is {self.n_relations}; this task has 1 to {len(SHIFTS)}.")

    @property
    def chance(self) -> float:
        """Accuracy of guessing."""
        return 1 / SYMBOLS


@dataclass(frozen=True, eq=False)
class TrainedHeads:
    """One training run, so far.

    steps, accuracy: held-out accuracy (share of all positions and relations) after so many steps.
    maps: [snapshot, head, query, key], 0 to 1: one probe sentence's attention at each of `steps`.
    milliseconds: median time of the trained attention's forward pass on a batch of 64; 0 before the end.
    """

    n_heads: int
    seed: int
    steps: tuple[int, ...]
    accuracy: tuple[float, ...]
    maps: NDArray[np.uint8]
    n_parameters: int
    milliseconds: float = 0.0

    @property
    def is_done(self) -> bool:
        return self.milliseconds > 0


@dataclass(frozen=True, eq=False)
class HeadExperiment:
    """Everything known so far. probe: the symbols of the sentence whose maps are kept."""

    settings: Settings
    probe: tuple[int, ...]
    runs: tuple[TrainedHeads, ...] = field(default_factory=tuple)

    @property
    def total(self) -> int:
        """How many runs there will be."""
        return len(self.settings.n_heads) * len(self.settings.seeds)

    def of(self, n_heads: int) -> list[TrainedHeads]:
        """The finished runs with so many heads."""
        return [run for run in self.runs if run.n_heads == n_heads and run.is_done]

    def summary(self) -> list[dict[str, float]]:
        """Per number of heads: final accuracy (mean, least, most over seeds), latency and seeds done."""
        rows = []
        for heads in self.settings.n_heads:
            done = self.of(heads)
            if done:
                final = [run.accuracy[-1] for run in done]
                rows.append({
                    "heads": heads, "d_head": self.settings.d_model // heads, "accuracy": statistics.fmean(final),
                    "least": min(final), "most": max(final), "seeds": len(done),
                    "milliseconds": statistics.median(run.milliseconds for run in done),
                    "parameters": done[0].n_parameters,
                })  # fmt: skip
        return rows

    def reading(self) -> list[str]:
        """What came out, in plain words computed from the numbers."""
        rows = self.summary()
        if len(rows) < 2:
            return []
        best = max(rows, key=lambda row: row["accuracy"])
        enough = next(row for row in rows if row["accuracy"] >= best["accuracy"] - 0.01)
        said = [
            f"Best: {best['heads']:.0f} heads with {best['accuracy']:.1%} of symbols right (guessing: "
            f"{self.settings.chance:.1%}). {enough['heads']:.0f} {'head' if enough['heads'] == 1 else 'heads'} "
            "are the fewest within one point of that."
        ]
        first, last = rows[0], rows[-1]
        if first["accuracy"] >= best["accuracy"] - 0.01:
            said.append(f"{first['heads']:.0f} head does as well as any here: more heads buy nothing on this task.")
        if last["accuracy"] < best["accuracy"] - 0.005 and last is not best:
            said.append(
                f"{last['heads']:.0f} heads of width {last['d_head']:.0f} end below the best at the same number of "
                "steps: narrow heads learn slower."
            )
        return said

    def to_json(self) -> str:
        """As text, maps included."""
        runs = [
            {**{name: value for name, value in vars(run).items() if name != "maps"}, "shape": run.maps.shape,
             "maps": base64.b64encode(run.maps.tobytes()).decode()}
            for run in self.runs
        ]  # fmt: skip
        return json.dumps({"settings": asdict(self.settings), "probe": self.probe, "runs": runs})

    @classmethod
    def from_json(cls, text: str) -> HeadExperiment:
        """What `to_json` wrote."""
        data = json.loads(text)
        settings: Any = _tuples(data["settings"])
        return cls(Settings(**settings), tuple(data["probe"]), tuple(map(_run, data["runs"])))


def run_experiment(settings: Settings | None = None) -> Iterator[HeadExperiment]:
    """Train every number of heads with every seed; yields what is known, some times per run.

    The first seed of every number of heads comes first, so that a stopped experiment still compares them.
    """
    settings = settings or Settings()
    probe = tuple(torch.randint(SYMBOLS, (LENGTH,), generator=_generator(10_000)).tolist())
    done: list[TrainedHeads] = []
    for seed in settings.seeds:
        for heads in settings.n_heads:
            for run in _train(settings, heads, seed, probe):
                yield HeadExperiment(settings, probe, (*done, run))
            done.append(run)


def task(symbols: Tensor, n_relations: int) -> Tensor:
    """What must be named: [batch, position, relation] for symbols [batch, position]."""
    positions = torch.arange(symbols.shape[1])
    return torch.stack([symbols[:, (positions - shift) % symbols.shape[1]] for shift in SHIFTS[:n_relations]], dim=-1)


class RelationModel(nn.Module):
    """Symbols [batch, position] -> logits [batch, position, relation, symbol]."""

    def __init__(self, d_model: int, n_heads: int, n_relations: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, d_model)
        self.positions = nn.Embedding(LENGTH, d_model)
        self.attention = MultiHeadAttention(d_model=d_model, n_heads=n_heads)
        self.readout = nn.Linear(d_model, n_relations * SYMBOLS)

    def embed(self, symbols: Tensor) -> Tensor:
        embedded: Tensor = self.symbols(symbols) + self.positions.weight
        return embedded

    def forward(self, symbols: Tensor) -> Tensor:
        logits: Tensor = self.readout(self.attention(self.embed(symbols)).output)
        return logits.view(*symbols.shape, -1, SYMBOLS)


def _train(settings: Settings, n_heads: int, seed: int, probe: Sequence[int]) -> Iterator[TrainedHeads]:
    """One run; yields it at each snapshot, and once more when it is done."""
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        torch.manual_seed(seed)
        model = RelationModel(settings.d_model, n_heads, settings.n_relations)
    drawn, held_out = _generator(seed), _generator(20_000)
    tested = torch.randint(SYMBOLS, (_TESTED, LENGTH), generator=held_out)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    when = sorted({round(settings.steps * (part / (_SNAPSHOTS - 1)) ** 2) for part in range(_SNAPSHOTS)})
    steps: list[int] = []
    accuracy: list[float] = []
    maps: list[NDArray[np.uint8]] = []
    n_parameters = sum(weight.numel() for weight in model.attention.parameters())
    for step in range(settings.steps + 1):
        if step in when:
            steps.append(step)
            accuracy.append(_accuracy(model, tested, settings.n_relations))
            maps.append(_maps(model, probe))
            run = TrainedHeads(n_heads, seed, tuple(steps), tuple(accuracy), np.stack(maps), n_parameters)
            yield run
        if step < settings.steps:
            _step(model, optimizer, torch.randint(SYMBOLS, (_BATCH, LENGTH), generator=drawn), settings.n_relations)
    yield TrainedHeads(**{**vars(run), "milliseconds": _milliseconds(model, tested[:_BATCH])})


def _step(model: RelationModel, optimizer: torch.optim.Optimizer, symbols: Tensor, n_relations: int) -> None:
    with torch.inference_mode(False), torch.enable_grad():
        logits = model(symbols.clone())
        loss = cross_entropy(logits.flatten(0, 2), task(symbols, n_relations).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _accuracy(model: RelationModel, symbols: Tensor, n_relations: int) -> float:
    with torch.no_grad():
        return float((model(symbols).argmax(dim=-1) == task(symbols, n_relations)).float().mean())


def _maps(model: RelationModel, probe: Sequence[int]) -> NDArray[np.uint8]:
    with torch.no_grad():
        weights = model.attention(model.embed(torch.tensor([list(probe)]))).weights[0]
    return np.rint(255 * weights.numpy()).astype(np.uint8)


def _milliseconds(model: RelationModel, symbols: Tensor) -> float:
    with torch.no_grad():
        embedded = model.embed(symbols)
        times = []
        for _ in range(25):
            began = time.perf_counter()
            model.attention(embedded)
            times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _tuples(settings: Mapping[str, object]) -> dict[str, object]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def _run(data: Mapping[str, object]) -> TrainedHeads:
    given = dict(_tuples(data))
    shape = given.pop("shape")
    maps = np.frombuffer(base64.b64decode(str(given.pop("maps"))), np.uint8).reshape(shape)  # type: ignore[call-overload]
    return TrainedHeads(**given, maps=maps)  # type: ignore[arg-type]


def _main() -> None:
    """Run the experiment as it is packaged and write it: `python -m mha_core.head_experiment FILE`."""
    import sys
    from pathlib import Path

    if len(sys.argv) != 2:
        sys.exit(f"Say where the result shall be written: {COMMAND}")
    for known in run_experiment():
        sys.stdout.write(f"\r{sum(run.is_done for run in known.runs)} of {known.total} runs")
        sys.stdout.flush()
    Path(sys.argv[1]).write_text(known.to_json() + "\n", encoding="utf-8")
    for row in known.summary():
        said = f"{row['accuracy']:.1%} ({row['least']:.1%} to {row['most']:.1%})"
        sys.stdout.write(f"\n{row['heads']:>3.0f} heads: {said}")
    sys.stdout.write("\n")


if __name__ == "__main__":
    _main()
