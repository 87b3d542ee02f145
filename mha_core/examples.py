"""The sentences that are offered to pick."""

from __future__ import annotations

from dataclasses import dataclass

from mha_core.catalogue import DATE_TRANSLATOR


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
DATES = (
    Example("the 3rd of …", "the 3rd of March, 2021"),
    Example("month first", "December 31, 2007"),
    Example("day first", "3.3.2021"),
    Example("weekday", "Wednesday, July 25th 1979"),
    Example("slashes", "12/25/1999"),
    Example("upper case", "07 SEP '68"),
    Example("year first", "2048 Feb 29"),
    Example("no date", "When Mary and John went to the store"),
)
_OF_MODELS = {DATE_TRANSLATOR.name: DATES}
OTHER_SENTENCE = "The creature went over the street because it was scared."


def examples_for(model: str) -> tuple[Example, ...]:
    """What is offered for a model: sentences, or what it was trained to read."""
    return _OF_MODELS.get(model, EXAMPLES)


def fitting_text(text: str, model: str) -> str:
    """The text for a model that is switched to: what was typed stays; another model's example, untouched, becomes the
    first of this model's own.
    """
    offered = examples_for(model)
    others = {example.text for examples in (EXAMPLES, *_OF_MODELS.values()) for example in examples}
    mine = {example.text for example in offered}
    return offered[0].text if text in others - mine else text
