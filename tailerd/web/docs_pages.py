"""`/docs`: the topics of `tailerd help` as pages, with a search; also as files (`write_site`)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from aiohttp import web
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tailerd.docs.topics import TOPICS, topic_text
from tailerd.registry import suggest_name
from tailerd.web.answers import refusal

_FIRST = "operating"
_CURRENT = ' aria-current="page"'
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · tailerd</title>
<link rel="icon" href="{static}icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="{static}style.css">
<script src="{static}theme.js"></script>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header class="bar">
  {head}
  <button type="button" id="theme" class="tool"></button>
</header>
<main id="main" class="docs" tabindex="-1">
<nav aria-label="Topics">{search}{topics}</nav>
<article class="prose">{body}</article>
</main>
</body>
</html>
"""


_HEAD = """<a class="brand" href="/">tailerd</a>
  <nav class="places" aria-label="Main">
    <a href="/#/">Tables</a>
    <a href="/#/daemon">Daemon</a>
    <a href="/docs" aria-current="page">Docs</a>
  </nav>"""
_SEARCH = """<form role="search" action="/docs">\
<input type="search" name="q" value="{}" aria-label="Search" placeholder="Search">\
</form>"""
_STATIC_FILES = ("icon.svg", "style.css", "theme.js")
_NAMES = {"faq": "FAQ", "http": "HTTP", "postgres": "PostgreSQL", "tiledb": "TileDB"}
MOST_RESULTS = 50
MOST_WORDS = 100
"""Characters of a search that are used."""


def routes() -> list[web.RouteDef]:
    """Return the routes of the documentation."""
    return [web.get("/docs", topic), web.get("/docs/{topic}", topic)]


async def topic(request: web.Request) -> web.Response:
    """Show a topic, by default the one most useful to operators, or the results of a search."""
    name = request.match_info.get("topic", _FIRST)
    words = request.query.get("q", "")[:MOST_WORDS].strip()
    if words:
        text = await asyncio.to_thread(results_page, words)
        return web.Response(text=text, content_type="text/html")
    if name not in TOPICS:
        remedy = suggest_name(name, TOPICS)
        return refusal(404, "unknown_topic", f"There is no topic {name[:100]!r}. {remedy}".strip())
    text = await asyncio.to_thread(page, name)
    return web.Response(text=text, content_type="text/html")


@lru_cache(maxsize=len(TOPICS))
def page(name: str) -> str:
    """Return a topic's page as HTML."""
    return _page(_title(name), _body(name, _address), name)


def _title(name: str) -> str:
    return _NAMES.get(name, name.capitalize())


def _address(name: str) -> str:
    return f"/docs/{name}"


def _body(name: str, address: Callable[[str], str]) -> str:
    text = topic_text(name)
    is_markdown = name != "configuration"
    return _html(text, address) if is_markdown else f'<pre tabindex="0">{escape(text)}</pre>'


def _page(title: str, body: str, name: str = "", words: str = "") -> str:
    return _PAGE.format(
        title=escape(title),
        static="/static/",
        head=_HEAD,
        search=_SEARCH.format(escape(words)),
        topics=_links(name, _address),
        body=body,
    )


def _links(name: str, address: Callable[[str], str]) -> str:
    return "".join(
        f'<a href="{address(each)}"{_CURRENT if each == name else ""} title="{escape(about)}">'
        f"{_title(each)}</a>"
        for each, about in TOPICS.items()
    )


def write_site(folder: Path) -> None:
    """Write every topic as a page that needs no server; an existing page is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _STATIC_FILES:
        (folder / name).write_bytes((files("tailerd.web") / "page" / name).read_bytes())
    for name in (*TOPICS, "index"):
        shown = _FIRST if name == "index" else name
        text = _PAGE.format(
            title=_title(shown),
            static="",
            head='<a class="brand places" href="index.html">tailerd</a>',
            search="",
            topics=_links(shown, "{}.html".format),
            body=_body(shown, "{}.html".format),
        )
        (folder / f"{name}.html").write_text(text, encoding="utf-8")


class Section(NamedTuple):
    """A part of a topic below one heading, as plain text."""

    topic: str
    heading: str
    text: str


@lru_cache(maxsize=1)
def _sections() -> tuple[Section, ...]:
    return tuple(section for name in TOPICS for section in _split(name))


def _split(name: str) -> Iterator[Section]:
    text = topic_text(name)
    if name == "configuration":
        yield Section(name, "", text)
        return
    for part in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]:
        heading, _, rest = part.partition("\n")
        yield Section(name, heading.strip(), rest)


def results_page(words: str) -> str:
    """Return the sections that have all words, those with a word in their heading first."""
    wanted = words.casefold().split()
    found = [
        each
        for each in _sections()
        if all(word in f"{each.topic} {each.heading} {each.text}".casefold() for word in wanted)
    ]
    found.sort(key=lambda each: not any(word in each.heading.casefold() for word in wanted))
    items = [_result(each, wanted) for each in found[:MOST_RESULTS]]
    body = f"<ul>{''.join(items)}</ul>" if items else "<p>No section has all of these words.</p>"
    title = f"{len(found)} results for {escape(words)}"
    return _page("Search", f"<h1>{title}</h1>{body}", words=words)


def _result(found: Section, wanted: list[str]) -> str:
    title = " · ".join(filter(None, (_title(found.topic), found.heading)))
    link = f'<a href="{_address(found.topic)}#{_slug(found.heading)}">{escape(title)}</a>'
    return f"<li>{link}<p>{escape(_excerpt(found.text, wanted))}</p></li>"


def _excerpt(text: str, wanted: list[str]) -> str:
    """Return the line with most of the words, without its marks."""
    lines = [re.sub(r"[`|#*]+", "", line).strip(" -") for line in text.splitlines()]
    return max(lines, key=lambda line: sum(word in line.casefold() for word in wanted))[:300]


def _html(text: str, address: Callable[[str], str]) -> str:
    """Return Markdown as HTML: tags in it are text, headings can be linked to."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", _slug(tokens[index + 1].content))
        elif token.type == "fence":
            # A region that scrolls can be reached with the keyboard.
            token.attrSet("tabindex", "0")
        # Alignment would be an inline style, which the Content-Security-Policy forbids.
        token.attrs.pop("style", None)
        for child in token.children or ():
            _lead_to_page(child, address)
    return str(markdown.renderer.render(tokens, markdown.options, {}))


def _lead_to_page(token: Token, address: Callable[[str], str]) -> None:
    """Let a link to another topic's file lead to its page."""
    file, mark, anchor = str(token.attrGet("href") or "").partition("#")
    if token.type == "link_open" and file.removesuffix(".md") in TOPICS:
        token.attrSet("href", f"{address(file.removesuffix('.md'))}{mark}{anchor}")


def _slug(heading: str) -> str:
    return re.sub(r"[^\w]+", "-", heading.casefold()).strip("-")
