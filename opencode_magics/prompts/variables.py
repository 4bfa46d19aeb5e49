"""Describe a notebook's variables, such as tables or figures, as context for a prompt.

A name is only looked up: no expression is evaluated and no iterator is consumed. An object without
its own text form is an error. The size is limited, and the text says how much was left out.
"""

from __future__ import annotations

import io
import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..client.client import Client
from ..core.formatting import in_one_line, shorten, without_middle
from ..core.model import Attachment
from ..errors import OpenCodeError, UnknownNameError
from ..sessions.lookup import answering_model
from .ask import PromptRequest, existing_session

CHARACTER_LIMIT = 8_000  # characters per variable
_ROWS = 5
_INSTEAD = "Convert it to a string, a dict or a DataFrame first."
_WIDEST = 100  # characters of a text in a table
_LEFT_OUT = "[... {:,} characters left out ...]"


@dataclass(frozen=True, slots=True)
class VariableContext:
    """The description of a variable in a prompt.

    Attributes:
        name: The variable's name in the notebook.
        what: Its kind, in a few words: `DataFrame, 3 rows x 2 columns`.
        text: The description for the agent; "" for an image.
        left_out: The number of characters left out of `text`.
        image: The image of a figure, as an attachment.
    """

    name: str
    what: str
    text: str = ""
    left_out: int = 0
    image: Attachment | None = None

    def __str__(self) -> str:
        if self.image is not None:
            return f"{self.name}: {self.what}, sent as an image"
        cut = f", {self.left_out:,} more left out" if self.left_out else ""
        return f"{self.name}: {self.what}; {len(self.text):,} characters sent{cut}"

    @property
    def section(self) -> str:
        """The section of the prompt about the variable."""
        cut = f" Its middle is left out ({self.left_out:,} characters)." if self.left_out else ""
        head = f"The notebook's variable `{self.name}`: {self.what}.{cut}"
        if self.image is not None:
            return f"{head} It is the attached image {self.image.filename}."
        fence = _fence(self.text)
        return f"{head}\n{fence}\n{self.text}\n{fence}"


def variable_context(
    name: str, names: Mapping[str, Any], limit: int = CHARACTER_LIMIT
) -> VariableContext:
    """Describe a variable for a prompt.

    Args:
        name: The variable's name.
        names: The notebook's variables.
        limit: The maximum number of characters.

    Raises:
        UnknownNameError: There is no such variable.
        OpenCodeError: The variable has no text form, or its own code fails.
    """
    if not name.isidentifier():
        raise OpenCodeError(
            f"--var takes the name of a variable, not {name!r}: expressions are not evaluated.",
            "Assign it to a name first.",
        )
    if name not in names:
        raise UnknownNameError(
            f"--var: the notebook has no variable {name!r}.", "Run the cell that defines it first."
        )
    value = names[name]
    kind = _kind(value)
    try:
        if kind == "figure":
            return _figure(name, value)
        what, text = _DESCRIBE[kind](value)
    except Exception as error:  # a repr or a figure may run any code
        raise OpenCodeError(
            f"--var {name}: this {type(value).__name__} can't be described: "
            f"{in_one_line(f'{type(error).__name__}: {error}', 200)}.",
            _INSTEAD,
        ) from error
    if not text.strip():
        raise OpenCodeError(f"--var {name}: a {type(value).__name__} has no text form.", _INSTEAD)
    shown = without_middle(text, limit, _LEFT_OUT)
    return VariableContext(name, what, shown, max(0, len(text) - limit))


def add_variables(
    client: Client, request: PromptRequest, described: list[VariableContext]
) -> PromptRequest:
    """Add variables to a request: their sections to its prompt, their images to its files.

    Raises:
        OpenCodeError: One is a figure, but the answering model doesn't accept images.
    """
    images = tuple(d.image for d in described if d.image)
    if images:
        figure = next(d.name for d in described if d.image)
        model = answering_model(client, existing_session(client, request), request.model)
        if model is not None and model.images is False:
            raise OpenCodeError(
                f"--var {figure}: model {model.ref} doesn't accept images.",
                "Choose one that does (%oc_models shows them), or send the figure's data instead.",
            )
    text = append_sections(request.text, described)
    return replace(request, text=text, files=(*request.files, *images))


def expand(text: str, names: Mapping[str, Any]) -> str:
    """Return a text with every {{name}} replaced by the variable of that name.

    Raises:
        UnknownNameError: There is no such variable.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in names:
            raise UnknownNameError(f"--expand: the notebook has no variable {name!r}.")
        return str(names[name])

    return re.sub(r"\{\{\s*(\w+)\s*\}\}", value, text)


def append_sections(text: str, described: list[VariableContext]) -> str:
    """Append the sections about variables to a prompt."""
    return "\n\n".join([text, *(d.section for d in described)])


def _kind(value: Any) -> str:
    """Determine the kind of a value from its class's name, so that no library is imported."""
    for cls in type(value).__mro__:
        home, _, _ = cls.__module__.partition(".")
        if (home, cls.__name__) in _KNOWN:
            return _KNOWN[home, cls.__name__]
    if hasattr(type(value), "savefig"):
        return "figure"
    return "text" if isinstance(value, str) else "other"


_KNOWN = {
    ("pandas", "DataFrame"): "frame",
    ("pandas", "Series"): "series",
    ("numpy", "ndarray"): "array",
    ("matplotlib", "Figure"): "figure",
    ("matplotlib", "Axes"): "figure",
}


def _frame(frame: Any) -> tuple[str, str]:
    rows, columns = frame.shape
    parts = {"dtypes": frame.dtypes.to_string(), f"first {_ROWS} rows": _head(frame)}
    if rows and columns and (summary := _summary(frame, include="all")):
        parts["summary"] = summary
    return f"DataFrame, {rows:,} rows x {columns:,} columns", _parts(parts)


def _series(series: Any) -> tuple[str, str]:
    parts = {f"first {_ROWS} values": _head(series)}
    if len(series) and (summary := _summary(series)):
        parts["summary"] = summary
    name = f" {series.name!r}" if series.name is not None else ""
    return f"Series{name}, {len(series):,} values, dtype {series.dtype}", _parts(parts)


def _summary(values: Any, **options: str) -> str:
    """pandas' own summary; "" for values that can't be counted, such as lists."""
    try:
        return str(values.describe(**options).map(_short).to_string())
    except TypeError:
        return ""


def _head(values: Any) -> str:
    """The first rows, with long texts shortened so that they don't displace the rest."""
    return str(values.head(_ROWS).map(_short).to_string())


def _short(value: Any) -> Any:
    return shorten(value, _WIDEST) if isinstance(value, str) else value


def _array(array: Any) -> tuple[str, str]:
    import numpy as np

    parts = {"values": np.array2string(array, threshold=60, edgeitems=3)}
    if array.size and array.dtype.kind in "iuf":
        finite = array[np.isfinite(array)]
        lines = [f"not finite: {array.size - finite.size}"]
        if finite.size:
            measures = (np.min, np.max, np.mean, np.std)
            lines += [f"{measure.__name__}: {measure(finite):.6g}" for measure in measures]
        parts["summary"] = "\n".join(lines)
    return f"array, shape {array.shape}, dtype {array.dtype}", _parts(parts)


def _text(value: str) -> tuple[str, str]:
    return f"text of {len(value):,} characters", value


def _other(value: Any) -> tuple[str, str]:
    """Describe any other object as JSON if possible, else by its own repr; "" if it has none."""
    what = type(value).__name__
    if isinstance(value, dict | list | tuple):
        what = f"{what} of {len(value):,}"
        try:
            return what, json.dumps(value, indent=2, ensure_ascii=False)
        except (TypeError, ValueError):
            pass  # not JSON
    lazy = hasattr(type(value), "__next__") or callable(value) or what == "module"
    convert = next((c for c in (repr, str) if _defines(value, f"__{c.__name__}__")), None)
    return what, "" if lazy or convert is None else convert(value)


def _defines(value: Any, name: str) -> bool:
    """Return whether the value's class defines a special method of `object` itself."""
    return getattr(type(value), name) is not getattr(object, name)


_DESCRIBE: Mapping[str, Callable[[Any], tuple[str, str]]] = {
    "frame": _frame,
    "series": _series,
    "array": _array,
    "text": _text,
    "other": _other,
}


def _figure(name: str, value: Any) -> VariableContext:
    figure = value if hasattr(value, "savefig") else value.figure
    png = io.BytesIO()
    figure.savefig(png, format="png", bbox_inches="tight")
    url = f"data:image/png;base64,{b64encode(png.getvalue()).decode()}"
    image = Attachment("", "image/png", f"{name}.png", url)
    return VariableContext(name, f"figure, PNG of {len(png.getvalue()):,} bytes", image=image)


def _parts(parts: Mapping[str, str]) -> str:
    return "\n\n".join(f"{name}:\n{text}" for name, text in parts.items())


def _fence(text: str) -> str:
    """A fence that the text can't close."""
    fence = "```"
    while fence in text:
        fence += "`"
    return fence
