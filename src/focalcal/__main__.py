"""The command `focalcal`, also as `python -m focalcal`."""

import sys


def main() -> None:
    """Run the command line; the import is inside `try`, as it is slow enough to be interrupted."""
    try:
        from focalcal.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
