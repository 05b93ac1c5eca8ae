"""``python -m rolecall.cli``: the same as the ``rolecall`` command."""

from rolecall.cli.main import main

main()
