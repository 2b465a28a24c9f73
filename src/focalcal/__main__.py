"""`python -m focalcal` is the command `focalcal`."""

from focalcal.cli import main

main()
