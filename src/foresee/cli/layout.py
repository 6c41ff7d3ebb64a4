"""`foresee layout`: what embedding servers have to know of a run's tables, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foresee.cli.options import RunFile, Set


def layout(
    run_file: RunFile,
    overrides: Set = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where it goes.")] = Path("layout.json"),
) -> None:
    """Describe the tables of a run for its embedding servers: `foresee serve --layout`.

    The log says how many rows each table has, the model how wide they are, the
    optimiser how much state belongs to each row. Servers with other tables than
    the run are refused by its workers.

    [bold]Examples[/]

      foresee layout run.yaml
      foresee layout run.yaml --set model.name=deepfm --out deepfm.json
    """
    from foresee.config import load_run
    from foresee.engine.parts import open_log, table_layout
    from foresee.store.server.layout_file import write_layout

    config = load_run(run_file, overrides or ())
    tables = table_layout(config, open_log(config))
    write_layout(out, tables)
    dim, width = config.model.dim, tables.width
    of_model = "model.dim" if width == dim else f"{config.model.name} makes that of model.dim, which is {dim}"
    print(
        f"{out}: {tables.num_rows:,} rows in {len(tables.tables)} tables, each of {width} values ({of_model}) and "
        f"{tables.state_width} of state ({tables.optimizer}): {tables.num_rows * tables.row_bytes / 1e6:,.1f} MB when "
        "every row is written"
    )
