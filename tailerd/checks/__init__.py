"""What `run` needs, tried before it runs: for `tailerd doctor` and `tailerd validate`."""
