"""When which job is due, and why. Pure: each policy looks at figures and a time."""
