"""`python -m elmokit`: the command line."""

from elmokit.cli.main import main

main()
