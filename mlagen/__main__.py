"""`python -m mlagen` is the `mlagen` command."""

from mlagen.cli.main import main

main()
