"""`python -m foresee` is the command `foresee`."""

from foresee.cli import main

if __name__ == "__main__":
    main()
