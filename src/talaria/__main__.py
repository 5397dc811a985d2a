"""`python -m talaria` is the `talaria` command."""

from talaria.cli.main import run

run()
