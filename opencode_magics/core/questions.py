"""Validate answers to questions before they are sent."""

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
    """Check the answers to a question.

    Raises:
        InvalidAnswer: An answer is invalid; the message lists all problems.
    """
    pairs = zip(question.items, answers, strict=False)
    problems = ((i, answer_error(i, texts)) for i, texts in pairs if applies(question, i, answers))
    errors = [f"{item.header or item.question}: {problem}" for item, problem in problems if problem]
    if errors:
        raise InvalidAnswer(f"{'; '.join(errors)}.", "Answer again.")


def answer_error(item: QuestionItem, answers: Sequence[str]) -> str:
    """Describe what is wrong with the answers to one item; "" if they are valid."""
    texts = [text for text in answers if text.strip()]
    if not texts:
        return "an answer is needed" if item.required and not item.default else ""
    offered = {name for o in item.options for name in (o.label, o.value) if name}
    others = [text for text in texts if text not in offered]
    if others and offered and not item.custom:
        return f"{others[0]!r} is not an option; choose {_choices(item)}"
    if item.multiple:
        return _bounds_error(item, len(texts), "answers")
    text = texts[0] if len(texts) == 1 else ", ".join(texts)
    return "" if text in offered else _text_error(item, text)


def parse_typed(item: QuestionItem, typed: str, *, numbers: bool = True) -> tuple[str, ...]:
    """Return the answers in a typed line: labels of options, their numbers, or other words.

    An exact label wins over a number, so that of the options 1, 2, 4, 8 the answer 4 is the third.

    Args:
        item: The question.
        typed: The line; for several answers, separated by commas.
        numbers: Whether the person sees numbers beside the options.

    Raises:
        InvalidAnswer: No option has the typed number.
    """
    labels = [option.label for option in item.options]
    if typed in labels or not item.multiple:
        return (_chosen(item, typed, numbers),)
    pieces, answers, start = typed.split(","), list[str](), 0
    while start < len(pieces):
        # A label can contain commas: the longest one wins.
        ends = range(len(pieces), start, -1)
        spans = ((end, ",".join(pieces[start:end]).strip()) for end in ends)
        end, text = next((s for s in spans if s[1] in labels), (start + 1, pieces[start].strip()))
        if text:
            answers.append(_chosen(item, text, numbers))
        start = end
    return tuple(dict.fromkeys(answers))


def _chosen(item: QuestionItem, text: str, numbers: bool) -> str:
    labels = [option.label for option in item.options]
    if not numbers or text in labels or not text.isdecimal() or not labels:
        return text
    if 1 <= int(text) <= len(labels):
        return labels[int(text) - 1]
    if item.kind in ("integer", "number") or any(label.isdecimal() for label in labels):
        return text  # a number of their own
    raise InvalidAnswer(f"There is no option {text}.", f"Choose {_choices(item)}.")


def _text_error(item: QuestionItem, text: str) -> str:
    if item.kind in ("integer", "number"):
        try:
            number = float(text)
        except ValueError:
            return f"{text!r} is not a number"
        if item.kind == "integer" and not number.is_integer():
            return f"{text!r} is not a whole number"
        return _bounds_error(item, number, "")
    if item.format in _FORMATS and not re.fullmatch(_FORMATS[item.format][0], text):
        return f"{text!r} is not {_FORMATS[item.format][1]}"
    if item.pattern and not _matches(item.pattern, text):
        return f"{text!r} does not match {item.pattern}"
    return _bounds_error(item, len(text), "characters")


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:  # a JavaScript pattern that Python can't compile: the server validates it
        return True


def _bounds_error(item: QuestionItem, size: float, unit: str) -> str:
    least, most = item.least, item.most
    noun = f" {unit}" if unit else ""
    if least is not None and size < least:
        return f"at least {least:g}{noun}, not {size:g}"
    if most is not None and size > most:
        return f"at most {most:g}{noun}, not {size:g}"
    return ""


def _choices(item: QuestionItem) -> str:
    return " or ".join(repr(o.label) for o in item.options)


def applies(
    question: Question,
    item: QuestionItem,
    answers: Sequence[Sequence[str]],
    visited: tuple[str, ...] = (),
) -> bool:
    """Return whether an item should be asked, given the answers that its conditions refer to.

    An item that doesn't apply counts as unanswered for items that depend on it. `visited` are the
    keys checked so far, since a form can have circular conditions.
    """
    path = (*visited, item.key)
    pairs = {i.key: (i, texts) for i, texts in zip(question.items, answers, strict=False)}

    def values(key: str) -> set[str]:
        other, texts = pairs.get(key, (None, ()))
        if other is None or key in path or not applies(question, other, answers, path):
            return set()
        return {
            normalize_value(other, text) for text in answer_values(other, texts) or other.default
        }

    return all((value in values(key)) == (op == "eq") for key, op, value in item.when)


def normalize_value(item: QuestionItem, text: str) -> str:
    """Normalize a value for comparison with conditions: `1.0` becomes `1` for a number."""
    try:
        number = float(text) if item.kind in ("integer", "number") else None
    except ValueError:
        return text
    return text if number is None else str(int(number) if number.is_integer() else number)


def answer_values(item: QuestionItem, answers: Sequence[str]) -> list[str]:
    """Return the values of the chosen options; a custom text is its own value."""
    values = {o.label: o.value or o.label for o in item.options}
    return [values.get(text, text) for text in answers]
