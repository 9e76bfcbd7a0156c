"""The documentation that comes with the program: topics as Markdown."""
