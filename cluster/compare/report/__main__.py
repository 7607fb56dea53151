"""``python -m cluster.compare.report rows.json --out DIR``: the report of a comparison that was run before."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from cluster.compare.document import write_csv
from cluster.compare.interrupted import INTERRUPTED
from cluster.compare.report import write


@click.command("cluster.compare.report", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("document", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Where to write it.")
def command(document: Path, out: Path) -> None:
    """Write report.html, its pictures and rows.csv for DOCUMENT, the JSON of a comparison.

    The rows.json of a comparison that was run with --out has also the curves of the tails.
    """

    try:
        content = json.loads(document.read_text(encoding="utf-8"))
        out.mkdir(parents=True, exist_ok=True)
        paths = write(out, content)
        write_csv(content["rows"], out / "rows.csv")
    except ValueError as error:
        raise click.UsageError(f"{document}: {error}") from None
    except ImportError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from None
    click.echo(f"report in {paths[0]}", err=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and write the report; the exit code."""
    try:
        command.main(None if arguments is None else list(arguments), "cluster.compare.report", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:  # Ctrl-C
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
