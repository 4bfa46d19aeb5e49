"""Read files as attachments: their content is sent, so the server needs no access to them."""

from __future__ import annotations

import mimetypes
import os
from base64 import b64encode
from pathlib import Path

from ..core.model import Attachment
from ..errors import OpenCodeError

# Types that models accept. 1.18.33 accepts any file, but then every later prompt of the session
# fails too, since the attachment is sent again.
_BINARY = ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf")
_LARGEST = 20_000_000  # bytes


def attachment(path: str | os.PathLike[str]) -> Attachment:
    """Read a file as an attachment; `~` is the home directory.

    Raises:
        OpenCodeError: The file can't be read, is too large, or is of a type that no model accepts.
    """
    name = os.fspath(path)
    file = Path(os.path.expanduser(name))
    try:
        content = file.read_bytes()
    except OSError as error:
        raise OpenCodeError(f"{name}: {error.strerror or error}.") from None
    if len(content) > _LARGEST:
        raise OpenCodeError(f"{name}: {len(content):,} bytes; the limit is {_LARGEST:,}.")
    mime = _mime(name, content)
    return Attachment("", mime, file.name, f"data:{mime};base64,{b64encode(content).decode()}")


def _mime(name: str, content: bytes) -> str:
    kind = mimetypes.guess_type(name)[0] or ""
    if kind in _BINARY:
        return kind
    try:
        if "\0" not in content.decode():
            return "text/plain"
    except UnicodeDecodeError:
        pass
    what = f"{kind} that is not UTF-8" if kind.startswith("text/") else kind or "a binary file"
    raise OpenCodeError(
        f"{name}: {what} can't be read by a model, and OpenCode 1.x would send it again with every "
        "later prompt.",
        "Attach text, an image or a PDF.",
    )
