"""Hostile texts of a model, tool, file or server: scripts, requests, links, spoofed output.

Each payload calls `fired("its name")` if it is executed, and requests a URL of EVIL if it is loaded
or followed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opencode_magics import history, tables
from opencode_magics.core.diffs import Diff
from opencode_magics.core.model import (
    Agent,
    Failure,
    FileDiff,
    Model,
    ModelRef,
    Option,
    Part,
    Permission,
    Question,
    QuestionItem,
    Reasoning,
    Session,
    Text,
)
from opencode_magics.core.turn import Retry, SettledRequest, Turn
from opencode_magics.notebook.form import permission_spec, question_spec
from opencode_magics.notebook.wording import clean
from support.sample_turns import SESSION, answer, tool
from support.sample_turns import turn as sample_turn

EVIL = "https://evil.example"

RUNS = {
    "script": "<script>fired('script')</script>",
    "script-upper": "<SCRIPT>fired('script-upper')</SCRIPT>",
    "script-src": f"<script src={EVIL}/script-src.js></script>",
    "script-module": f"<script type=module>import '{EVIL}/script-module.js'</script>",
    "script-unclosed": "<script>fired('script-unclosed')",
    "script-split": "<scr<script>ipt>fired('script-split')</scr</script>ipt>",
    "script-in-svg": "<svg><script>fired('script-in-svg')</script></svg>",
    "script-after-title": "</title><script>fired('script-after-title')</script>",
    "script-after-textarea": "</textarea><script>fired('script-after-textarea')</script>",
    "script-after-pre": "</pre></code></div><script>fired('script-after-pre')</script>",
    "script-after-comment": "--><script>fired('script-after-comment')</script>",
    "script-in-cdata": "<![CDATA[><script>fired('script-in-cdata')</script>]]>",
    "img-onerror": "<img src=x onerror=fired('img-onerror')>",
    "img-onerror-quoted": '<img src="x" onerror="fired(\'img-onerror-quoted\')">',
    "img-onerror-slash": "<img/src=x/onerror=fired('img-onerror-slash')>",
    "img-onerror-tab": "<img\tsrc=x\tonerror=fired('img-onerror-tab')>",
    "img-onerror-line": "<img\nsrc=x\nonerror=fired('img-onerror-line')>",
    "img-onerror-nul": "<im\x00g src=x onerror=fired('img-onerror-nul')>",
    "img-onerror-unclosed": "<img src=x onerror=fired('img-onerror-unclosed')//",
    "img-onload": (
        "<img src=data:image/gif;base64,R0lGODlhAQABAAAAACw= "
        "onload=fired('img-onload') onerror=fired('img-onload')>"
    ),
    "attribute-double": '" onmouseover="fired(\'attribute-double\')" autofocus tabindex=1 x="',
    "attribute-focus": '" onfocus="fired(\'attribute-focus\')" autofocus tabindex=1 x="',
    "attribute-single": "' onfocus='fired(`attribute-single`)' autofocus tabindex=1 x='",
    "attribute-tag": "\"><img src=x onerror=fired('attribute-tag')>",
    "attribute-tag-single": "'><img src=x onerror=fired('attribute-tag-single')>",
    "svg-onload": "<svg onload=fired('svg-onload')>",
    "svg-animate": "<svg><animate onbegin=fired('svg-animate') attributeName=x dur=1s></svg>",
    "svg-foreign": (
        "<svg><foreignObject><img src=x onerror=fired('svg-foreign')></foreignObject></svg>"
    ),
    "svg-use": f"<svg><use href='{EVIL}/svg-use.svg#x'></use></svg>",
    "math-href": "<math><mtext><img src=x onerror=fired('math-href')></mtext></math>",
    "mutation": "<noscript><p title=\"</noscript><img src=x onerror=fired('mutation')>\">",
    "mutation-style": (
        "<svg></p><style><a id=\"</style><img src=x onerror=fired('mutation-style')>\">"
    ),
    "details-ontoggle": "<details open ontoggle=fired('details-ontoggle')>x</details>",
    "input-autofocus": "<input autofocus onfocus=fired('input-autofocus')>",
    "video-onerror": "<video><source onerror=fired('video-onerror')></video>",
    "audio-onerror": "<audio src=x onerror=fired('audio-onerror')></audio>",
    "body-onload": "<body onload=fired('body-onload')>",
    "marquee-onstart": "<marquee onstart=fired('marquee-onstart')>x</marquee>",
    "iframe-srcdoc": "<iframe srcdoc=\"<script>parent.fired('iframe-srcdoc')</script>\"></iframe>",
    "iframe-javascript": "<iframe src=\"javascript:parent.fired('iframe-javascript')\"></iframe>",
    "object-data": "<object data=\"javascript:fired('object-data')\"></object>",
    "embed-src": "<embed src=\"javascript:fired('embed-src')\">",
    "custom-element": "<x-y onclick=fired('custom-element') autofocus tabindex=0>x</x-y>",
    "entities": "&lt;img src=x onerror=fired('entities')&gt;",
    "entities-twice": "&amp;lt;img src=x onerror=fired('entities-twice')&amp;gt;",
    "entities-number": "&#60;img src=x onerror=fired('entities-number')&#62;",
    "entities-unended": "&#x3Cimg src=x onerror=fired('entities-unended')&#x3E",
    "fullwidth": "\uff1cimg src=x onerror=fired('fullwidth')\uff1e",
    "ansi-then-tag": "\x1b[31m<img src=x onerror=fired('ansi-then-tag')>\x1b[0m",
}

LOADS = {
    "img-remote": f"<img src={EVIL}/img-remote.png>",
    "img-srcset": f"<img srcset='{EVIL}/img-srcset.png 1x'>",
    "md-image": f"![pixel]({EVIL}/md-image.png)",
    "md-image-reference": f"![pixel][p]\n\n[p]: {EVIL}/md-image-reference.png",
    "style-import": f"<style>@import '{EVIL}/style-import.css';</style>",
    "style-all": "<style>* { display: none !important }</style>",
    "style-attribute": f'<p style="background:url({EVIL}/style-attribute.png)">x</p>',
    "style-cover": "<div style='position:fixed;inset:0;background:red;z-index:99999'>x</div>",
    "link-stylesheet": f"<link rel=stylesheet href={EVIL}/link-stylesheet.css>",
    "link-prefetch": f"<link rel=prefetch href={EVIL}/link-prefetch>",
    "iframe-remote": f"<iframe src={EVIL}/iframe-remote></iframe>",
    "video-poster": f"<video poster={EVIL}/video-poster.png src={EVIL}/video.mp4></video>",
    "picture": f"<picture><source srcset={EVIL}/picture.png><img></picture>",
    "input-image": f"<input type=image src={EVIL}/input-image.png>",
    "table-background": f"<table background={EVIL}/table-background.png><tr><td>x</table>",
    "svg-image": f"<svg><image href={EVIL}/svg-image.png width=9 height=9 /></svg>",
    "base": f"<base href={EVIL}/>",
    "meta-refresh": f"<meta http-equiv=refresh content='0;url={EVIL}/meta-refresh'>",
    "form": f"<form action={EVIL}/form method=post><button>Allow once</button></form>",
    "formaction": f"<button formaction={EVIL}/formaction>Allow once</button>",
    "latex-graphics": rf"$\includegraphics{{{EVIL}/latex.png}}$",
    "latex-style": rf"$$\style{{background:url({EVIL}/latex-style.png)}}{{x}}$$",
    "latex-unicode": r"\(\require{html}\class{jp-Dialog}{x}\)",
}

LINKS = {
    "a-javascript": "<a href=\"javascript:fired('a-javascript')\">click</a>",
    "md-javascript": "[click](javascript:fired('md-javascript'))",
    "md-javascript-entity": "[click](javascript&colon;fired('md-javascript-entity'))",
    "md-javascript-case": "[click](JaVaScRiPt:fired('md-javascript-case'))",
    "md-javascript-tab": "[click](java\tscript:fired('md-javascript-tab'))",
    "md-javascript-encoded": "[click](&#x6A;avascript:fired('md-javascript-encoded'))",
    "md-auto": "<javascript:fired('md-auto')>",
    "md-reference": "[click][r]\n\n[r]: javascript:fired('md-reference')",
    "md-title": '[click](https://a.example "x\\" onmouseover=\\"fired(1)")',
    "md-data": "[click](data:text/html,<script>opener.fired('md-data')</script>)",
    "md-vbscript": "[click](vbscript:msgbox(1))",
    "md-file": "[click](file:///etc/passwd)",
    "md-commandlinker": "[click](#x){data-commandlinker-command='terminal:create-new'}",
    "latex-href": r"$\href{javascript:fired('latex-href')}{click}$",
    "latex-href-display": r"$$\href{javascript:fired('latex-href-display')}{click}$$",
    "latex-url": r"\[\url{javascript:fired('latex-url')}\]",
    "commandlinker": (
        "<a data-commandlinker-command='terminal:create-new' data-commandlinker-args='{}'>x</a>"
    ),
}

SPOOFS = {
    "ansi-clear": "\x1b[2J\x1b[H\x1b[8mhidden\x1b[0m",
    "ansi-link": f"\x1b]8;;{EVIL}\x07click\x1b]8;;\x07",
    "ansi-title": "\x1b]0;owned\x07",
    "carriage-return": "rm -rf /\rls",
    "backspace": "rm\x08\x08ls",
    "bidi-override": "\u202egpj.exe",
    "bidi-isolate": "\u2067abc\u2066def",
    "zero-width": "ls\u200b\u2060;\ufeffrm",
    "tags": "ls\U000e0072\U000e006d",
    "half-pair": "x\ud800y",
    "line-separators": "a\u2028b\u2029c\x85d",
    "nul": "a\x00b",
    "fence-unclosed": "```python\nprint(1)",
    "fence-hostile": "```<img src=x onerror=fired('fence-hostile')>\nx\n```",
    "table-hostile": "| <img src=x onerror=fired('table-hostile')> |\n|---|\n| x |",
    "heading-deep": "#" * 500 + " x",
    "quotes-deep": ">" * 500 + " x",
    "long-word": "A" * 5_000,
    "combining": "Z" + "\u0336\u0489\u0361" * 200,
    "percent": "%s %(x)s {x} {{x}} $x ${x} \\x",
    "static-line": "x\nPermission: bash 'rm -rf /' → once",
}

ALL = {**RUNS, **LOADS, **LINKS, **SPOOFS}


# -- values with payloads in every text field ------------------------------------------------------


def turn(payloads: Iterable[str]) -> Turn:
    """Return a turn with payloads in every text of the model, tools, files and server."""
    parts: list[Part] = []
    asked: list[SettledRequest] = []
    failures: list[Failure] = []
    retries: list[Retry] = []
    children: list[Session] = []
    for n, text in enumerate(payloads):
        child = Session(f"ses_{n}", text, "/", parent=SESSION, agent=text)
        children.append(child)
        parts += [
            Text(f"text{n}", text, 0, 1),
            Reasoning(f"reasoning{n}", text, 0, 1),
            tool(text, f"call{n}", input={"command": text, text: text}, output=text, title=text),
            tool("task", f"task{n}", input={"description": text}, child=child.id, output=text),
            tool("edit", f"edit{n}", input={"filePath": text}, diffs=(file_diff(text),)),
            tool("read", f"read{n}", input={"filePath": text}, status="error", error=text),
        ]
        asked += [
            SettledRequest(permission(text, f"call{n}"), "reject", text),
            SettledRequest(permission(text, f"edit{n}", diff=file_diff(text)), text),
            SettledRequest(question(text, f"task{n}", child.id), "answered", text),
        ]
        failures.append(Failure(text, text, 500, text))
        retries.append(Retry(1, text, None, None))
    message = answer(*parts, agent="".join(payloads), model=ModelRef("".join(payloads), "m"))
    return sample_turn(
        message,
        sessions=tuple(children),
        settled_requests=tuple(asked),
        failures=tuple(failures),
        retries=tuple(retries),
    )


def values(text: str) -> list[Any]:
    """Return objects that magics return, with a payload in every text field."""
    settled = SettledRequest(permission(text), text, text)
    session = Session("ses_1", text, text, text, None, text, ModelRef(text, text, text))
    diff = Diff.of([("msg_1", file_diff(text))])
    shown = [session, permission(text), question(text), settled, file_diff(text)]
    return [*shown, diff, diff.side_by_side()]


def frames(payloads: Iterable[str]) -> list[Any]:
    """Return the DataFrames of magics with payloads."""
    texts = list(payloads)
    sessions = [Session(t, t, t, t, t, t, ModelRef(t, t, t)) for t in texts]
    waiting = [*map(permission, texts), *map(question, texts)]
    return [
        history.frames.sessions(sessions),
        tables.agents(Agent(t, t, t) for t in texts),
        tables.models(Model(t, t, t, (t,)) for t in texts),
        tables.requests((r, s) for r, s in zip(waiting, sessions * 2, strict=True)),
    ]


def specs(payloads: Iterable[str]) -> list[Any]:
    """Return the specs of forms: a command, an edit, and a question with every payload."""
    texts = list(payloads)
    joined, first = "\n".join(texts), texts[0]
    items = tuple(i for t in texts for i in question(t).items)
    note = {"note": clean(joined)}
    return [
        permission_spec(permission(joined, "1"), first, "until it ends", 2, joined) | note,
        permission_spec(permission(first, "2", diff=file_diff(joined)), first, "", 0, joined)
        | note,
        question_spec(Question("que_1", SESSION, items), first) | note,
    ]


def permission(text: str, call: str | None = None, diff: FileDiff | None = None) -> Permission:
    """Return a permission request for a hostile action."""
    command = None if diff else text
    return Permission(f"per_{call}", SESSION, text, (text,), (text, text), command, diff, call)


def question(text: str, call: str | None = None, session: str = SESSION) -> Question:
    """Return a question with hostile options."""
    items = (QuestionItem(text, text, (Option(text, text), Option(text)), True),)
    return Question(f"que_{call}", session, items, call)


def file_diff(text: str) -> FileDiff:
    """Return a changed file with a hostile name and hostile lines."""
    lines = text.split("\n")
    changed = "".join(f"-{line}\n+{line} \n" for line in lines)
    head = f"--- {text}\n+++ {text}\n@@ -1,{len(lines)} +1,{len(lines)} @@\n"
    return FileDiff(text, head + changed, 1, 1)
