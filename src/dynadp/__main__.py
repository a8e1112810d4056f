"""``python -m dynadp`` is ``dynadp``."""

from dynadp.cli import main

main()
