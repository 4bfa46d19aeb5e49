"""Structured answers: add a schema to a prompt's text, and validate the answer against it.

The schema is not sent as the `format` of a prompt: after one such prompt the session's message list
fails with 400 forever, and the server doesn't validate the value (1.18.33). JSON is searched for
anywhere in an answer, but never repaired.
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
_TYPES = {"string", "number", "integer", "boolean", "null", "array", "object"}
_ASK = "Answer with JSON that fits this JSON Schema, and with nothing else:"
_MAX_REASON = 500  # characters: a reason may quote the whole answer
# One value of each JSON type, to find out whether values can be validated against a schema.
_SAMPLES: tuple[Any, ...] = ({}, [], "", 0, True, None)
_AGAIN = "That answer can't be used: {reason} Give the whole answer again. " + _ASK


@dataclass(frozen=True, slots=True)
class Schema:
    """The required form of an answer.

    Attributes:
        json: The JSON Schema.
        build: Converts a valid JSON value to the value that the user gets.
    """

    json: JsonSchema
    build: Callable[[Any], Any]

    @property
    def fields(self) -> tuple[str, ...]:
        """The property names of an object, or of the objects of an array; else empty."""
        return tuple((_rows(self.json) or _resolved(self.json, self.json)).get("properties") or ())

    @property
    def is_object(self) -> bool:
        """Whether a value is a single object with known property names."""
        return bool(_resolved(self.json, self.json).get("properties"))

    def prompt_text(self, text: str, reason: str = "") -> str:
        """The prompt with the schema; with a `reason`, a prompt that rejects the last answer."""
        schema = json.dumps(self.json, indent=2, ensure_ascii=False)
        instruction = _AGAIN.format(reason=reason) if reason else f"{text}\n\n{_ASK}"
        return f"{instruction}\n```json\n{schema}\n```"

    def parse(self, answer: str) -> Any:
        """Return the first valid JSON value of an answer, converted by `build`.

        Raises:
            ValueError: The answer has no valid value; the message is a sentence that says why.
        """
        values = [clean_json(value) for value in _values(answer)]
        if not values:
            raise ValueError("There is no JSON in it.")
        reasons = [self._reason(value) for value in values]
        valid = [v for v, reason in zip(values, reasons, strict=True) if not reason]
        if not valid:
            raise ValueError(reasons[0])
        return self.build(valid[0])

    def _reason(self, value: Any) -> str:
        """The main reason why a value is invalid; "" if it is valid."""
        from jsonschema.exceptions import best_match

        try:
            error = best_match(_validator(self.json).iter_errors(value))
        except (OverflowError, RecursionError):  # 10**400, or a tree of a thousand levels
            return "It is nested too deeply, or a number in it is too large."
        if error is None:
            return ""
        path = "" if error.json_path == "$" else f"At {error.json_path}: "
        reason = f"{path}{error.message.rstrip('.')}"
        return shorten(f"{reason}.", _MAX_REASON)


def _validator(schema: JsonSchema) -> Any:
    """A validator that never fetches a remote `$ref`."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    return validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())


# -- making schemas --------------------------------------------------------------------------------


def schema_by_name(name: str, names: Mapping[str, Any]) -> Schema:
    """Make a schema from a variable, by its name, or from a .json file.

    Raises:
        UnknownNameError: There is no such variable or file.
        OpenCodeError: No schema can be made from it.
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
        raise OpenCodeError(f"--schema {name} is not JSON: {error}.") from None


def schema_from(model: Any) -> Schema:
    """Make a schema from a JSON Schema, a type or an example.

    Args:
        model: A JSON Schema (a dict), a dataclass or another type, or an example (dict or list).

    Returns:
        A schema. It builds a DataFrame from an array of objects; otherwise instances of the type,
        or dicts and lists if `model` is not a type.

    Raises:
        OpenCodeError: `model` is anything else, or an invalid JSON Schema.
    """
    if isinstance(model, type) or get_origin(model) is not None:
        return _of_type(model)
    if isinstance(model, dict) and _is_schema(model):
        return _finished(model)
    if isinstance(model, dict | list) and model:
        try:
            return _finished(_of_example(model))
        except RecursionError:
            raise OpenCodeError("An example of an answer can't contain itself.") from None
    hint = " Give its class." if is_dataclass(model) else ""
    raise OpenCodeError(
        f"A value of type {type(model).__name__} is not a schema.{hint}",
        "Use a JSON Schema, a dataclass, or an example: a dict, or a list with one.",
    )


def _of_type(model: Any) -> Schema:
    import msgspec

    try:
        schema = msgspec.json.schema(model)
    except TypeError as error:
        name = getattr(model, "__name__", str(model))
        raise OpenCodeError(f"Can't make a schema from {name}: {error}.") from None
    strict = {k: _closed(v) for k, v in schema.get("$defs", {}).items()}
    schema = schema | ({"$defs": strict} if strict else {})
    return _finished(schema, lambda value: msgspec.convert(value, type=model))


def _closed(schema: JsonSchema) -> JsonSchema:
    """Forbid other properties: the conversion to a class would silently drop them."""
    return schema | ({"additionalProperties": False} if "properties" in schema else {})


def _finished(schema: JsonSchema, build: Callable[[Any], Any] = lambda value: value) -> Schema:
    """Return a `Schema` after checking that values can be validated against it."""
    from jsonschema.exceptions import SchemaError
    from referencing.exceptions import Unresolvable

    try:
        schema = clean_json(json.loads(json.dumps(schema, allow_nan=False)))
        _validator(schema).check_schema(schema)
        _check_references(schema)
        rows = _rows(schema)
    except SchemaError as error:
        raise _invalid_schema(f"at {error.json_path}, {error.message}") from None
    except Unresolvable as error:
        raise _invalid_schema(f"it has no definition of {error.ref}") from None
    except RecursionError:
        raise _invalid_schema("it contains an infinite reference") from None
    except (ValueError, TypeError, AttributeError, LookupError) as error:  # a $ref to no schema
        raise _invalid_schema(str(error)) from None
    return Schema(schema, _to_frame(tuple(rows.get("properties") or ())) if rows else build)


def _invalid_schema(reason: str) -> OpenCodeError:
    return OpenCodeError(
        f"Answers can't be checked with this JSON Schema: {reason}.",
        "Correct it, or give an example of the answer instead.",
    )


def _check_references(schema: JsonSchema) -> None:
    """Resolve every reference, and validate with it: some errors only show on validation."""
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    resource = DRAFT202012.create_resource(schema)
    uri = resource.id() or ""
    resolver = Registry().with_resource(uri, resource).crawl().resolver(uri)
    for reference in _references(schema):
        resolver.lookup(reference)
    validator = _validator(schema)
    for part in (schema, *({"$ref": reference} for reference in _references(schema))):
        for value in _SAMPLES:
            any(validator.descend(value, part))


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _references(item)


def _is_schema(model: dict[str, Any]) -> bool:
    """Return whether a dict is a JSON Schema rather than an example of an answer."""
    kinds = model.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return (
        any(isinstance(model.get(k), str) for k in ("$schema", "$ref"))
        or all(isinstance(k, str) and k in _TYPES for k in kinds)
        or any(isinstance(model.get(k), dict) for k in ("properties", "items"))
        or any(isinstance(model.get(k), list) for k in ("anyOf", "oneOf", "allOf", "enum"))
    )


def _of_example(value: Any) -> JsonSchema:
    """The schema of answers like an example; None allows any value."""
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
            properties = {str(k): _of_example(v) for k, v in value.items()}
            closed = {"required": list(properties), "additionalProperties": False}
            return {"type": "object", "properties": properties} | closed
        case None:
            return {}
        case _:
            raise OpenCodeError(
                f"An example of an answer can't contain a {type(value).__name__}.",
                "Use JSON types: text, numbers, booleans, None, lists and dicts.",
            )


def _rows(schema: JsonSchema) -> JsonSchema | None:
    """The schema of the objects in an array of objects; None for any other schema."""
    schema = _resolved(schema, schema)
    items = schema.get("items")
    if schema.get("type") != "array" or not isinstance(items, dict):
        return None
    row = _resolved(items, schema)
    return row if row.get("type") == "object" else None


def _resolved(schema: JsonSchema, root: JsonSchema) -> JsonSchema:
    """Resolve a reference into the schema's own definitions; other schemas are unchanged."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    definition = root.get("$defs", {}).get(name)
    return root | definition if definition and schema is root else definition or schema


def _to_frame(columns: tuple[str, ...]) -> Callable[[Any], Any]:
    def frame(rows: list[dict[str, Any]]) -> Any:
        import pandas as pd

        names = list(dict.fromkeys([*columns, *(k for row in rows for k in row)]))
        return pd.DataFrame(rows, columns=names).convert_dtypes()

    return frame


# -- parsing answers -------------------------------------------------------------------------------


def _values(answer: str) -> Iterator[Any]:
    """The JSON values of an answer: all of it and its fenced blocks, else those in its text."""
    yielded = False
    for text in (answer, *reversed(_fenced(answer))):
        try:
            value = json.loads(text, parse_constant=_reject, parse_float=_number)
        except (ValueError, RecursionError):  # too deep
            continue
        yielded = True
        yield value
    if not yielded:
        yield from _inline(answer)


def _fenced(answer: str) -> list[str]:
    """The texts of the fenced blocks of an answer."""
    from markdown_it import MarkdownIt

    return [t.content for t in MarkdownIt("commonmark").parse(answer) if t.type == "fence"]


_BRACKET = re.compile(r"[{\[]")
_VAIN = 20


def _inline(answer: str) -> Iterator[Any]:
    """Objects and arrays between other words.

    Each beginning that fails is read up to its error, so the characters that are read in vain have
    a limit: 192 kB of "[" took 3.5 s.
    """
    decoder, at = json.JSONDecoder(parse_constant=_reject, parse_float=_number), 0
    vain = 0
    while (bracket := _BRACKET.search(answer, at)) and vain <= _VAIN * len(answer) + 100_000:
        try:
            value, at = decoder.raw_decode(answer, bracket.start())
        except ValueError as error:
            at = bracket.end()
            vain += getattr(error, "pos", at) - bracket.start() + 1
        except RecursionError:
            return
        else:
            yield value


def _reject(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _number(text: str) -> float:
    """Parse a number with a point or an exponent; 1e999 is an error, not infinity."""
    if math.isinf(number := float(text)):
        raise ValueError(f"{text} is too large")
    return number


# -- asking ----------------------------------------------------------------------------------------


def ask_for_schema(
    send: Callable[[str], Turn],
    text: str,
    schema: Schema,
    retries: int = 2,
    on_retry: Callable[[str], object] | None = None,
) -> Turn:
    """Ask for an answer that matches a schema; retry with the reason if it doesn't.

    Args:
        send: Sends a prompt and returns its turn; called for the first prompt and every retry.
        text: The prompt.
        schema: The schema of the answer.
        retries: The maximum number of retries.
        on_retry: Called before every retry with a sentence that says why.

    Returns:
        The turn with the valid answer: its `value` is the parsed answer, its `earlier` are the
        previous attempts. A turn that is still running is returned without a value.

    Raises:
        UnfitAnswer: No answer was valid, or there was none; the error has all turns.
    """
    turns: list[Turn] = []
    prompt, reason = schema.prompt_text(text), ""
    for retry in range(retries + 1):
        if retry and on_retry:
            on_retry(f"Asking again ({retry} of {retries}): {reason}")
        turns.append(send(prompt))
        last = turns[-1]
        if last.outcome == "running":  # left by a timeout
            return with_value(last, None, turns[:-1])
        if last.outcome != "succeeded":
            raise _unfit(f"the turn is {last.outcome}, so there is no answer to read", turns)
        try:
            return with_value(last, schema.parse(last.text), turns[:-1])
        except ValueError as error:
            reason = str(error)
        prompt = schema.prompt_text(text, reason)
    raise _unfit(reason, turns)


def _unfit(reason: str, turns: list[Turn]) -> UnfitAnswer:
    attempts = "1 attempt" if len(turns) == 1 else f"{len(turns)} attempts"
    return UnfitAnswer(
        f"No valid answer after {attempts}: {reason.rstrip('.')}.",
        "sys.last_value.turns are the turns with the answers.",
        turns=tuple(turns),
    )
