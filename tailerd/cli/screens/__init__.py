"""Screens of `tailerd top` and `tailerd tail -i`, the only location that uses Textual."""
