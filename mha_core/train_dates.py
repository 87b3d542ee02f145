"""Train the small encoder–decoder on written dates: `python -m mha_core.train_dates`.

Writes the weights into `assets/`, with what they are and how well they do as the file's metadata. One thread and fixed
seeds: equal versions on equal machines give equal weights.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from mha_core.date_translator import WEIGHTS, Vocabulary, accuracy, metadata_of
from mha_core.dates import characters, draw
from mha_core.encoder_decoder import EncoderDecoder, Sizes

SEED, STEPS, BATCH, RATE, WARMUP = 0, 2000, 192, 2e-3, 200
AROUND = (("on ", ""), (" ", ""), ("\0", ""), ("", "."), ("", " "), ("", "\0"))  # \0: a character nobody knows
AROUND_SHARE = 0.1  # of the sources stand in such surroundings
HELD_OUT = 2000
Say = Callable[[str], None]


def train(
    sizes: Sizes, vocabulary: Vocabulary, steps: int = STEPS, seed: int = SEED, say: Say | None = None
) -> EncoderDecoder:
    """A trained network. say: told how it does now and then, on dates that are not trained on."""
    torch.manual_seed(seed)
    rng, fresh = random.Random(seed), random.Random(seed + 1)  # noqa: S311
    network = EncoderDecoder(sizes)
    optimiser = torch.optim.AdamW(network.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step, steps))
    for step in range(1, steps + 1):
        loss = _loss(network, vocabulary, draw(rng, BATCH), rng)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if say is not None and step % 200 == 0:
            exact = accuracy(network, vocabulary, draw(fresh, 200, new_dates=True))
            say(f"step {step}: loss {loss.item():.4f}, exact on new dates {exact:.3f}")
    return network.requires_grad_(False).eval()


def _rate(step: int, steps: int) -> float:
    """Linear warm-up, then half a cosine down to zero."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP)))


def _loss(
    network: EncoderDecoder, vocabulary: Vocabulary, pairs: Sequence[tuple[str, str]], rng: random.Random
) -> Tensor:
    """Mean loss of each character of the answer and of its end, given those before."""
    given, mask = vocabulary.sources([_surrounded(text, rng) for text, _ in pairs])
    target = torch.tensor([[vocabulary.START, *vocabulary.ids(answer), vocabulary.END] for _, answer in pairs])
    logits = network(given, mask, target[:, :-1]).logits
    return cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())


def _surrounded(text: str, rng: random.Random) -> str:
    """Now and then with something before or after the date."""
    if rng.random() >= AROUND_SHARE:
        return text
    before, after = rng.choice(AROUND)
    return before + text + after


def measure(network: EncoderDecoder, vocabulary: Vocabulary, seed: int = SEED) -> dict[str, str]:
    """Share of exact answers on dates never trained on; and on such dates in formats never trained on."""
    rng = random.Random(seed + 1000)  # noqa: S311
    dates = draw(rng, HELD_OUT, new_dates=True)
    both = draw(rng, HELD_OUT, new_dates=True, new_formats=True)
    return {
        "held_out_exact": f"{accuracy(network, vocabulary, dates):.4f}",
        "held_out_formats_exact": f"{accuracy(network, vocabulary, both):.4f}",
        "held_out_count": str(HELD_OUT),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(description="Train the date translator.")
    parser.add_argument("--out", type=Path, default=Path("assets") / WEIGHTS, help="where the weights go")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=SEED)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    started = time.perf_counter()
    vocabulary = Vocabulary(characters())
    sizes = Sizes(len(vocabulary), pad=Vocabulary.PAD, start=Vocabulary.START, end=Vocabulary.END)
    network = train(sizes, vocabulary, chosen.steps, chosen.seed, lambda line: _say(line, started))
    recipe = {
        "command": f"python -m mha_core.train_dates --steps {chosen.steps} --seed {chosen.seed}", "batch": BATCH,
        "rate": RATE, "warmup": WARMUP, "optimiser": "AdamW", "torch": torch.__version__, "threads": 1,
        "minutes": round((time.perf_counter() - started) / 60, 1),
        "processor_minutes": round(time.process_time() / 60, 1),
    }  # fmt: skip
    measured = measure(network, vocabulary, chosen.seed)
    _say(json.dumps(measured), started)
    metadata = metadata_of(sizes, vocabulary, task="written dates to ISO dates", recipe=json.dumps(recipe), **measured)
    save_file(dict(network.state_dict()), chosen.out, metadata)


def _say(line: str, started: float) -> None:
    sys.stdout.write(f"{time.perf_counter() - started:6.0f} s  {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
