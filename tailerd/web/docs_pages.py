"""`/docs`: the topics of `tailerd help` as pages, rendered from Markdown on first request."""

from __future__ import annotations

import asyncio
import re
from functools import lru_cache
from html import escape

from aiohttp import web
from markdown_it import MarkdownIt

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
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/style.css">
<script src="/static/theme.js"></script>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header class="bar">
  <a class="brand" href="/">tailerd</a>
  <nav class="places" aria-label="Main">
    <a href="/#/">Tables</a>
    <a href="/#/daemon">Daemon</a>
    <a href="/docs" aria-current="page">Docs</a>
  </nav>
  <button type="button" id="theme" class="tool"></button>
</header>
<main id="main" class="docs" tabindex="-1">
<nav aria-label="Topics">{topics}</nav>
<article class="prose">{body}</article>
</main>
</body>
</html>
"""


def routes() -> list[web.RouteDef]:
    """Return the routes of the documentation."""
    return [web.get("/docs", topic), web.get("/docs/{topic}", topic)]


async def topic(request: web.Request) -> web.Response:
    """Show a topic, by default the one most useful to operators."""
    name = request.match_info.get("topic", _FIRST)
    if name not in TOPICS:
        remedy = suggest_name(name, TOPICS)
        return refusal(404, "unknown_topic", f"There is no topic {name[:100]!r}. {remedy}".strip())
    text = await asyncio.to_thread(page, name)
    return web.Response(text=text, content_type="text/html")


@lru_cache(maxsize=len(TOPICS))
def page(name: str) -> str:
    """Return a topic's page as HTML."""
    text = topic_text(name)
    is_markdown = name != "configuration"
    body = _html(text) if is_markdown else f'<pre tabindex="0">{escape(text)}</pre>'
    links = (
        f'<a href="/docs/{each}"{_CURRENT if each == name else ""} title="{escape(about)}">'
        f"{each.capitalize()}</a>"
        for each, about in TOPICS.items()
    )
    return _PAGE.format(title=name.capitalize(), topics="".join(links), body=body)


def _html(text: str) -> str:
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
    return str(markdown.renderer.render(tokens, markdown.options, {}))


def _slug(heading: str) -> str:
    return re.sub(r"[^\w]+", "-", heading.casefold()).strip("-")
