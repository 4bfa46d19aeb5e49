"""Answers as values: a schema goes into a prompt's text, and the answer is checked against it here.

Nothing of it goes into the `format` of a prompt: one such prompt makes the message list of its
session answer 400 for ever, and the server doesn't check the value anyway (1.18.33). JSON is looked
for wherever it stands in an answer, but what it says is never repaired.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, get_origin

from ..core.formatting import shorten
from ..core.turn import Turn, with_value
from ..dialects.jsonwire import clean_json
from ..errors import OpenCodeError, UnfitAnswer, UnknownNameError

JsonSchema = dict[str, Any]
_FENCED = re.compile(
    r"^[ \t]*(?P<fence>`{3,20})(?!`)[^\n]*\n(?P<text>.*?)^[ \t]*(?P=fence)[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
_TYPES = {"string", "number", "integer", "boolean", "null", "array", "object"}
_ASK = "Answer with JSON that fits this JSON Schema, and with nothing else:"
_LONGEST = 500  # characters of a reason: it may quote the whole answer
# One value of each kind: what can't be checked with these can't be checked.
_KINDS: tuple[Any, ...] = ({}, [], "", 0, True, None)
_AGAIN = "That answer can't be used: {reason} Give the whole answer again. " + _ASK


@dataclass(frozen=True, slots=True)
class Schema:
    """What an answer has to look like.

    Attributes:
        json: The JSON Schema.
        build: Makes of a JSON value that fits what a person gets.
    """

    json: JsonSchema
    build: Callable[[Any], Any]

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the values of an object, or of each object of an array; () without any."""
        return tuple((_rows(self.json) or _resolved(self.json, self.json)).get("properties") or ())

    @property
    def is_object(self) -> bool:
        """Whether a value is a single object with known fields."""
        return bool(_resolved(self.json, self.json).get("properties"))

    def prompt_text(self, text: str, reason: str = "") -> str:
        """A prompt for an answer that fits; with a `reason`, the one that says why not."""
        told = json.dumps(self.json, indent=2, ensure_ascii=False)
        asked = _AGAIN.format(reason=reason) if reason else f"{text}\n\n{_ASK}"
        return f"{asked}\n```json\n{told}\n```"

    def parse(self, answer: str) -> Any:
        """The value of an answer.

        Raises:
            ValueError: It has none that fits; the message is a sentence that says why.
        """
        found = [clean_json(value) for value in _values(answer)]
        if not found:
            raise ValueError("There is no JSON in it.")
        reasons = [self._reason(value) for value in found]
        fitting = [v for v, reason in zip(found, reasons, strict=True) if not reason]
        if not fitting:
            raise ValueError(reasons[0])
        return self.build(fitting[0])

    def _reason(self, value: Any) -> str:
        """Why a value doesn't fit, the most telling reason; "" if it does."""
        from jsonschema.exceptions import best_match

        try:
            worst = best_match(_validator(self.json).iter_errors(value))
        except (OverflowError, RecursionError):  # 10**400, or a tree of a thousand levels
            return "A number in it is too large to check, or it is too deep."
        if worst is None:
            return ""
        where = "" if worst.json_path == "$" else f"At {worst.json_path}: "
        reason = f"{where}{worst.message.rstrip('.')}"
        return shorten(f"{reason}.", _LONGEST)


def _validator(schema: JsonSchema) -> Any:
    """Checks values; what a `$ref` names elsewhere is never fetched."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    return validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())


# -- from what a person gave -----------------------------------------------------------------------


def schema_by_name(name: str, names: Mapping[str, Any]) -> Schema:
    """The schema of a variable's name, or of a .json file.

    Raises:
        UnknownNameError: There is no such variable or file.
        OpenCodeError: It is no schema.
    """
    if name.isidentifier():
        if name not in names:
            raise UnknownNameError(
                f"--schema: the notebook has no variable {name!r}.",
                "Give the name of a JSON Schema, a dataclass or an example, or a .json file.",
            )
        return schema_from(names[name])
    try:
        return schema_from(json.loads(Path(name).expanduser().read_text(encoding="utf-8")))
    except OSError as error:
        raise UnknownNameError(f"--schema {name}: {error.strerror or error}.") from None
    except ValueError as error:
        raise OpenCodeError(f"--schema {name} is no JSON: {error}.") from None


def schema_from(model: Any) -> Schema:
    """The schema that something stands for.

    Args:
        model: A JSON Schema (a dict), a dataclass or another type, an example (dict or list).

    Returns:
        A schema whose values are instances where it was a type, else dicts and lists; a DataFrame
        in any case where it is an array of objects.

    Raises:
        OpenCodeError: It is nothing of that kind, or a JSON Schema that is wrong.
    """
    if isinstance(model, type) or get_origin(model) is not None:
        return _of_type(model)
    if isinstance(model, dict) and _is_schema(model):
        return _finished(model)
    if isinstance(model, dict | list) and model:
        try:
            return _finished(_of_example(model))
        except RecursionError:
            raise OpenCodeError("An example of an answer can't have itself in it.") from None
    hint = " Give its class." if is_dataclass(model) else ""
    raise OpenCodeError(
        f"A value of type {type(model).__name__} is no schema.{hint}",
        "A schema is a JSON Schema, a dataclass, or an example: a dict, or a list with one.",
    )


def _of_type(model: Any) -> Schema:
    import msgspec

    try:
        schema = msgspec.json.schema(model)
    except TypeError as error:
        name = getattr(model, "__name__", str(model))
        raise OpenCodeError(f"Of {name} no schema can be made: {error}.") from None
    strict = {k: _closed(v) for k, v in schema.get("$defs", {}).items()}
    schema = schema | ({"$defs": strict} if strict else {})
    return _finished(schema, lambda value: msgspec.convert(value, type=model))


def _closed(schema: JsonSchema) -> JsonSchema:
    """What a class has no room for would be lost without a word."""
    return schema | ({"additionalProperties": False} if "properties" in schema else {})


def _finished(schema: JsonSchema, build: Callable[[Any], Any] = lambda value: value) -> Schema:
    """A schema as the prompt tells it, once it is sure that answers can be checked with it."""
    from jsonschema.exceptions import SchemaError
    from referencing.exceptions import Unresolvable

    try:
        schema = clean_json(json.loads(json.dumps(schema, allow_nan=False)))
        _validator(schema).check_schema(schema)
        _check_references(schema)
        rows = _rows(schema)
    except SchemaError as error:
        raise _no_schema(f"at {error.json_path}, {error.message}") from None
    except Unresolvable as error:
        raise _no_schema(f"it refers to what is not in it, {error.ref}") from None
    except RecursionError:
        raise _no_schema("it refers to itself without end") from None
    except (ValueError, TypeError, AttributeError, LookupError) as error:  # a $ref to no schema
        raise _no_schema(str(error)) from None
    return Schema(schema, _framed(tuple(rows.get("properties") or ())) if rows else build)


def _no_schema(why: str) -> OpenCodeError:
    return OpenCodeError(
        f"That is no JSON Schema to check answers with: {why}.",
        "Correct it, or give an example of the answer instead.",
    )


def _check_references(schema: JsonSchema) -> None:
    """Follow every reference, and check with it: of some it shows only then that they are none."""
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    whole = DRAFT202012.create_resource(schema)
    home = whole.id() or ""
    resolver = Registry().with_resource(home, whole).crawl().resolver(home)
    for reference in _references(schema):
        resolver.lookup(reference)
    checks = _validator(schema)
    for part in (schema, *({"$ref": reference} for reference in _references(schema))):
        for value in _KINDS:
            any(checks.descend(value, part))


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for inside in value:
            yield from _references(inside)


def _is_schema(model: dict[str, Any]) -> bool:
    """Whether a dict is a JSON Schema rather than an example of an answer."""
    kinds = model.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return (
        any(isinstance(model.get(k), str) for k in ("$schema", "$ref"))
        or all(isinstance(k, str) and k in _TYPES for k in kinds)
        or any(isinstance(model.get(k), dict) for k in ("properties", "items"))
        or any(isinstance(model.get(k), list) for k in ("anyOf", "oneOf", "allOf", "enum"))
    )


def _of_example(value: Any) -> JsonSchema:
    """The schema of answers like this one; of None nothing is known."""
    match value:
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case str():
            return {"type": "string"}
        case list() | tuple():
            return {"type": "array"} | ({"items": _of_example(value[0])} if value else {})
        case dict():
            told = {str(k): _of_example(v) for k, v in value.items()}
            closed = {"required": list(told), "additionalProperties": False}
            return {"type": "object", "properties": told} | closed
        case None:
            return {}
        case _:
            raise OpenCodeError(
                f"An example of an answer can't have a {type(value).__name__} in it.",
                "It is made of what JSON has: text, numbers, True, None, lists and dicts.",
            )


def _rows(schema: JsonSchema) -> JsonSchema | None:
    """The schema of the objects of an array of objects; None if it is something else."""
    schema = _resolved(schema, schema)
    items = schema.get("items")
    if schema.get("type") != "array" or not isinstance(items, dict):
        return None
    row = _resolved(items, schema)
    return row if row.get("type") == "object" else None


def _resolved(schema: JsonSchema, root: JsonSchema) -> JsonSchema:
    """What a reference into the schema's own definitions means."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    found = root.get("$defs", {}).get(name)
    return root | found if found and schema is root else found or schema


def _framed(columns: tuple[str, ...]) -> Callable[[Any], Any]:
    def frame(rows: list[dict[str, Any]]) -> Any:
        import pandas as pd

        names = list(dict.fromkeys([*columns, *(k for row in rows for k in row)]))
        return pd.DataFrame(rows, columns=names).convert_dtypes()

    return frame


# -- from an answer --------------------------------------------------------------------------------


def _values(answer: str) -> Iterator[Any]:
    """The JSON values of an answer: all of it, else what is fenced, else what begins somewhere."""
    yielded = False
    for text in (answer, *(m["text"] for m in reversed(list(_FENCED.finditer(answer))))):
        try:
            value = json.loads(text, parse_constant=_no_json, parse_float=_number)
        except (ValueError, RecursionError):  # too deep
            continue
        yielded = True
        yield value
    if not yielded:
        yield from _bare(answer)


def _bare(answer: str) -> Iterator[Any]:
    """Objects and arrays that stand between other words."""
    decoder, at = json.JSONDecoder(parse_constant=_no_json, parse_float=_number), 0
    while found := re.compile(r"[{\[]").search(answer, at):
        try:
            value, at = decoder.raw_decode(answer, found.start())
        except ValueError:
            at = found.end()
        except RecursionError:
            return
        else:
            yield value


def _no_json(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _number(text: str) -> float:
    """A number with a point or an exponent; 1e999 is larger than any."""
    if math.isinf(number := float(text)):
        raise ValueError(f"{text} is too large")
    return number


# -- asking ----------------------------------------------------------------------------------------


def ask_for_schema(
    send: Callable[[str], Turn],
    text: str,
    schema: Schema,
    retries: int = 2,
    told: Callable[[str], object] | None = None,
) -> Turn:
    """Ask for an answer that fits, and again, with the reason, for one that doesn't.

    Args:
        send: Has a prompt answered; called for the first prompt and for every retry.
        text: The prompt.
        schema: What its answer has to look like.
        retries: How often to ask again at most.
        told: Hears, before every retry, why it comes.

    Returns:
        The turn whose answer fits; its `value` is what the answer says, its `earlier` are the turns
        before it.

    Raises:
        UnfitAnswer: No answer fitted, or there was none; it carries all turns.
    """
    turns: list[Turn] = []
    prompt, reason = schema.prompt_text(text), ""
    for retry in range(retries + 1):
        if retry and told:
            told(f"Asking again ({retry} of {retries}): {reason}")
        turns.append(send(prompt))
        last = turns[-1]
        if last.outcome != "succeeded":
            raise _unfit(f"there is no answer to read, since the turn is {last.outcome}", turns)
        try:
            return with_value(last, schema.parse(last.text), turns[:-1])
        except ValueError as error:
            reason = str(error)
        prompt = schema.prompt_text(text, reason)
    raise _unfit(reason, turns)


def _unfit(reason: str, turns: list[Turn]) -> UnfitAnswer:
    tries = "the answer" if len(turns) == 1 else f"the last of {len(turns)} answers"
    return UnfitAnswer(
        f"No answer that fits the schema: of {tries}, {reason.rstrip('.')}.",
        "What was answered is in its turns: sys.last_value.turns.",
        turns=tuple(turns),
    )
