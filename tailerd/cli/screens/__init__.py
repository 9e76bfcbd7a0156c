"""Screens of `tailerd top` and `tailerd tail -i`, the only place that uses Textual."""
