"""What is wrong with an answer to a question, in words: checked before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import InvalidAnswer
from .model import Question, QuestionItem

_FORMATS = {
    "email": (r"[^@\s]+@[^@\s]+", "an email address"),
    "uri": (r"[A-Za-z][A-Za-z0-9+.-]*:\S+", "an address like https://example.org"),
    "date": (r"\d{4}-\d\d-\d\d", "a date like 2026-11-29"),
    "date-time": (r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d.*", "a date and time like 2026-11-29T12:00:00Z"),
}


def check_answers(question: Question, answers: Sequence[Sequence[str]]) -> None:
    """Make sure that a question can take its answers.

    Raises:
        InvalidAnswer: It can't; says all that is wrong.
    """
    pairs = zip(question.items, answers, strict=False)
    told = ((i, answer_error(i, given)) for i, given in pairs if applies(question, i, answers))
    wrong = [f"{item.header or item.question}: {what}" for item, what in told if what]
    if wrong:
        raise InvalidAnswer(f"{'; '.join(wrong)}.", "Answer again.")


def answer_error(item: QuestionItem, given: Sequence[str]) -> str:
    """What is wrong with the answer to one item, "" if nothing is."""
    said = [text for text in given if text.strip()]
    if not said:
        return "an answer is needed" if item.required and not item.default else ""
    offered = {name for o in item.options for name in (o.label, o.value) if name}
    strange = [text for text in said if text not in offered]
    if strange and offered and not item.custom:
        return f"{strange[0]!r} is no option; choose {_among(item)}"
    if item.multiple:
        return _bounds(item, len(said), "answers")
    text = said[0] if len(said) == 1 else ", ".join(said)
    return "" if text in offered else _text(item, text)


def _text(item: QuestionItem, text: str) -> str:
    if item.kind in ("integer", "number"):
        try:
            number = float(text)
        except ValueError:
            return f"{text!r} is no number"
        if item.kind == "integer" and not number.is_integer():
            return f"{text!r} is no whole number"
        return _bounds(item, number, "")
    if item.format in _FORMATS and not re.fullmatch(_FORMATS[item.format][0], text):
        return f"{text!r} is not {_FORMATS[item.format][1]}"
    if item.pattern and not _fits(item.pattern, text):
        return f"{text!r} does not fit {item.pattern}"
    return _bounds(item, len(text), "characters")


def _fits(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:  # a pattern of JavaScript that is none here: the server judges
        return True


def _bounds(item: QuestionItem, size: float, what: str) -> str:
    least, most = item.least, item.most
    noun = f" {what}" if what else ""
    if least is not None and size < least:
        return f"at least {least:g}{noun}, not {size:g}"
    if most is not None and size > most:
        return f"at most {most:g}{noun}, not {size:g}"
    return ""


def _among(item: QuestionItem) -> str:
    return " or ".join(repr(o.label) for o in item.options)


def applies(
    question: Question,
    item: QuestionItem,
    answers: Sequence[Sequence[str]],
    above: tuple[str, ...] = (),
) -> bool:
    """Whether an item counts, given the answers so far to those that it depends on.

    One that doesn't count has no answer itself: what depends on it finds none. `above` are the keys
    that led here, since a form may be made in a circle.
    """
    line = (*above, item.key)
    pairs = {i.key: (i, given) for i, given in zip(question.items, answers, strict=False)}

    def told(key: str) -> set[str]:
        other, given = pairs.get(key, (None, ()))
        if other is None or key in line or not applies(question, other, answers, line):
            return set()
        return {
            normalize_value(other, text) for text in answer_values(other, given) or other.default
        }

    return all((value in told(key)) == (op == "eq") for key, op, value in item.when)


def normalize_value(item: QuestionItem, text: str) -> str:
    """A value as conditions spell it: one number has one spelling."""
    try:
        number = float(text) if item.kind in ("integer", "number") else None
    except ValueError:
        return text
    return text if number is None else str(int(number) if number.is_integer() else number)


def answer_values(item: QuestionItem, given: Sequence[str]) -> list[str]:
    """The values behind chosen labels; a text of one's own is its own value."""
    named = {o.label: o.value or o.label for o in item.options}
    return [named.get(text, text) for text in given]
