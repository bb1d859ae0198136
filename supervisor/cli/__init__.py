"""The command line: `supervisor`."""
