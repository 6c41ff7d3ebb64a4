"""`python -m foresee` is the command `foresee`."""

from foresee.tools.cli import main

if __name__ == "__main__":
    main()
