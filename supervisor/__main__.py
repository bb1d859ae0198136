"""`python -m supervisor` is the command `supervisor`."""

from supervisor.cli.app import main

if __name__ == "__main__":
    main()
