"""`python -m tailerd` is the command `tailerd`."""

from tailerd.cli import main

if __name__ == "__main__":
    main()
