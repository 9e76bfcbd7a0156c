"""One table's journey in this process: wait, plan, read, write, commit."""
