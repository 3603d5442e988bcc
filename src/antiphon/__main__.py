"""`python -m antiphon` is `antiphon`."""

from antiphon.cli.main import main

if __name__ == "__main__":
    main()
