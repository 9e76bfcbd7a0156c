"""Screens of `tailerd top` and `tailerd tail -i`, the only package that uses Textual."""
