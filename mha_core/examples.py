"""The sentences that are offered to pick."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """label: on the button. text: the sentence. pair: a second one, for models that take two."""

    label: str
    text: str
    pair: str = ""


EXAMPLES = (
    Example("Mary / John", "When Mary and John went to the store, John gave a drink to"),
    Example("it = application?", "The developer deployed the application because it was ready."),
    Example("it = animal?", "The animal crossed the road because it was frightened."),
    Example("it = server?", "The engineer fixed the server because it had stopped responding."),
    Example("she approved", "The engineer handed the manager the report because she approved it."),
    Example("keys … are", "The keys to the old wooden cabinet in the hallway"),
    Example("I love …", "I love building software."),
    Example("machine learning", "I love machine learning."),
)
OTHER_SENTENCE = "The creature went over the street because it was scared."
