"""`python -m backchannel` is the command line."""

from backchannel.cli.main import main

if __name__ == "__main__":
    main()
