"""Frequent and rare words that tasks draw from, for the slice "word".

Criterion: Zipf frequency (log10 of occurrences per thousand million words) in the English list of wordfreq 3.1.1
(Speer 2022, doi:10.5281/zenodo.7199437), looked up once, when the lists were chosen: frequent is 4.2 or more (16 in a
million words), rare is 3.95 or less (9 in a million). Words between the two, and words whose plural or other form
would tell another story, are in neither. The ranges that were found stand beside each list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mha_core.tasks import chosen

FREQUENT, RARE = "frequent", "rare"
CRITERION = (
    "frequent: at least 16 times in a million words of English, rare: at most 9 times (Zipf frequency 4.2 or more, "
    "3.95 or less, in wordfreq 3.1.1)"
)


@dataclass(frozen=True)
class Words:
    """Words of one kind. frequent, rare: by the criterion at the head of this module."""

    frequent: tuple[str, ...]
    rare: tuple[str, ...]

    def of(self, frequency: str) -> tuple[str, ...]:
        """Those of "frequent" or "rare"."""
        return {FREQUENT: self.frequent, RARE: self.rare}[frequency]

    def drawn(self, rng: np.random.Generator, frequency: str, n: int = 1) -> list[str]:
        """n different words of a frequency."""
        return chosen(rng, self.of(frequency), n)


def _words(frequent: str, rare: str) -> Words:
    return Words(tuple(frequent.split()), tuple(rare.split()))


# Plural with -s. Frequent 4.50 to 5.71, rare 3.48 to 3.93.
NOUNS = _words(
    "key door letter picture window teacher doctor driver table chair garden river mountain bridge engine ticket "
    "student guard writer pilot house boat tower road field car",
    "painter shepherd wagon sailor tractor falcon violin pillar peasant pigeon lantern tailor miner trumpet tavern "
    "kettle beetle flute canoe shovel sparrow fountain",
)
# Frequent 4.23 to 5.38, rare 3.21 to 3.87; each is one token of SmolLM2 and of BERT.
NAMES = _words(
    "Mary John Tom James Anna Sarah David Peter Alice Emma Robert Susan",
    "Theodore Otto Judith Julius Naomi Esther Agnes Edith Miriam Leopold Ezra Boris",
)
# Subjects by the pronoun that stands for them. Frequent 4.45 to 5.82, rare 3.25 to 3.93.
SUBJECTS: Mapping[str, Words] = {
    "he": _words("boy man king father uncle brother prince husband son",
                 "monk lad waiter grandson policeman wizard"),
    "she": _words("girl woman queen mother sister princess wife daughter",
                  "nun niece duchess waitress granddaughter countess"),
    "it": _words("dog horse cat bird bear fox", "squirrel donkey beaver badger otter hamster"),
    "they": _words("dogs boys women girls children men students brothers",
                   "monks goats frogs nuns squirrels badgers"),
}  # fmt: skip
# Frequent 4.23 to 5.02, rare 3.26 to 3.93.
PEOPLE = _words(
    "doctor teacher lawyer nurse student pilot baker manager writer artist",
    "barber sailor tailor weaver plumber blacksmith shepherd painter",
)
# Frequent 4.45 to 5.71, rare 3.54 to 3.88.
PLACES = _words(
    "village city market station garden school library castle valley museum",
    "abbey marsh monastery meadow quarry orchard lighthouse tavern vineyard",
)
# What something is a kind of, and of which kind. Frequent 4.21 to 5.71, rare 2.98 to 3.93.
KINDS: Mapping[str, Words] = {
    "animal": _words("dog horse cat lion tiger bear", "ferret badger hamster hedgehog otter squirrel"),
    "bird": _words("duck chicken robin", "sparrow heron raven falcon pigeon hawk"),
    "fruit": _words("apple orange", "plum pear mango strawberry apricot"),
    "instrument": _words("guitar piano", "violin flute banjo clarinet cello trumpet"),
    "vehicle": _words("car truck bus train", "tractor wagon lorry scooter tram"),
    "weapon": _words("gun sword bomb", "dagger spear pistol crossbow revolver"),
    "building": _words("church house hotel school hospital castle", "lighthouse tavern windmill"),
    "flower": _words("rose", "tulip orchid daisy violet poppy"),
}
# (adjective, its opposite) -> words for the first, which the second contradicts. Frequent 4.21 to 5.81, rare 2.98 to
# 3.93.
OPPOSITES: Mapping[tuple[str, str], Words] = {
    ("hot", "cold"): _words("hot", "scorching"), ("cold", "hot"): _words("cold", "icy frigid chilly"),
    ("big", "small"): _words("big huge enormous", "gigantic"), ("dirty", "clean"): _words("dirty", "filthy muddy"),
    ("wet", "dry"): _words("wet", "damp soggy moist"), ("weak", "strong"): _words("weak", "feeble frail"),
    ("strong", "weak"): _words("strong", "sturdy"), ("rich", "poor"): _words("rich wealthy", "affluent prosperous"),
    ("long", "short"): _words("long", "lengthy"), ("dark", "bright"): _words("dark", "gloomy murky dim"),
    ("slow", "fast"): _words("slow", "sluggish"), ("fast", "slow"): _words("fast", "speedy"),
    ("happy", "sad"): _words("happy", "joyful cheerful"), ("loud", "quiet"): _words("loud", "noisy"),
    ("young", "old"): _words("young", "youthful"), ("expensive", "cheap"): _words("expensive", "costly pricey"),
}  # fmt: skip
