"""`python -m etag.cli` is the command `etag`."""

from etag.cli import main

main()
