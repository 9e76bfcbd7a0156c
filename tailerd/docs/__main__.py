"""`python -m tailerd.docs build FOLDER`: the pages of `tailerd help` as HTML files."""

from __future__ import annotations

from pathlib import Path

import click

from tailerd.web.docs_pages import write_site


@click.group(epilog="Example: python -m tailerd.docs build site/")
def main() -> None:
    """Build the documentation."""


@main.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def build(folder: Path) -> None:
    """Write every topic to FOLDER as a page that needs no server."""
    write_site(folder)
    click.echo(f"Open {folder / 'index.html'} in a browser.")


if __name__ == "__main__":
    main(prog_name="python -m tailerd.docs")
