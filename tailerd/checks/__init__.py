"""Checks what `run` needs before it runs: for `tailerd doctor` and `tailerd validate`."""
