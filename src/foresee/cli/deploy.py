"""`foresee deploy`: a script for Slurm, or manifests for Kubernetes, that run a run file's parts on many machines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from foresee.cli.options import RunFile, Set

app = typer.Typer(
    help="Write what Slurm or Kubernetes needs to run a run file on many machines: a script, or manifests.",
    no_args_is_help=True, rich_markup_mode="rich",
)  # fmt: skip

Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where it goes; left out: printed.")]
Nodes = Annotated[int, typer.Option("--nodes", min=1, help="Machines that share the parts of the run.")]
Image = Annotated[str, typer.Option("--image", help="Container image with foresee in it.")]
Claim = Annotated[
    str, typer.Option("--data-claim", metavar="NAME", help="Volume claim, ReadWriteMany, with the log on it.")
]
Log = Annotated[str, typer.Option("--log-folder", metavar="PATH", help="The prepared log inside that volume.")]
Name = Annotated[str | None, typer.Option("--name", help="Of the job; left out: the run folder's name.")]


@app.command()
def slurm(
    run_file: RunFile,
    overrides: Set = None,
    nodes: Nodes = 1,
    command: Annotated[str, typer.Option("--command", help="How nodes call foresee.")] = "foresee",
    out: Out = None,
) -> None:
    """A script for sbatch: servers, planner and workers on the nodes of one job.

    Run file, log, run folder and tables have to be on paths that all nodes see.
    Lost parts are started again; before its time is over the job commits, and is
    queued again.

    [bold]Example[/]

      foresee deploy slurm run.yaml --set distributed.workers=8 --nodes 4 --out job.sh && sbatch job.sh
    """
    from foresee.launch.deploy.sizes import sizes_of
    from foresee.launch.deploy.slurm import script
    from foresee.run.run_file import load_run

    file, given = run_file.absolute(), overrides or []
    config = load_run(file, given)
    _check_store(config)
    _write(script(config, file, sizes_of(config), nodes=nodes, command=command, overrides=given), out)


@app.command()
def jobset(
    run_file: RunFile,
    image: Image,
    data_claim: Claim,
    log_folder: Log,
    overrides: Set = None,
    name: Name = None,
    out: Out = None,
) -> None:
    """Manifests of a JobSet: a Secret, a ConfigMap, a volume claim for rows, and the parts as replicated jobs.

    They hold a token and a private key made for this run: keep the file to yourself.

    [bold]Example[/]

      foresee deploy jobset run.yaml --image foresee:0.3 --data-claim logs --log-folder criteo --out jobset.yaml
    """
    from foresee.launch.deploy import kubernetes
    from foresee.launch.deploy.sizes import sizes_of

    config, target = _target(run_file, overrides, image, data_claim, log_folder, name)
    _check_store(config)
    _write(_yaml(kubernetes.jobset(config, sizes_of(config), target)), out)


@app.command()
def kuberay(
    run_file: RunFile,
    image: Image,
    data_claim: Claim,
    log_folder: Log,
    overrides: Set = None,
    nodes: Nodes = 1,
    name: Name = None,
    out: Out = None,
) -> None:
    """Manifests of a RayJob: KubeRay makes a cluster, and `foresee train --on ray` runs there.

    [bold]Example[/]

      foresee deploy kuberay run.yaml --nodes 4 --image foresee:0.3 --data-claim logs --log-folder criteo
    """
    from foresee.launch.deploy import kubernetes
    from foresee.launch.deploy.sizes import sizes_of

    config, target = _target(run_file, overrides, image, data_claim, log_folder, name)
    _write(_yaml(kubernetes.kuberay(config, sizes_of(config), target, nodes=nodes)), out)


def _target(
    run_file: Path, overrides: list[str] | None, image: str, claim: str, log_folder: str, name: str | None
) -> tuple[Any, Any]:
    from foresee.errors import ConfigError
    from foresee.launch.deploy.kubernetes import NAME, Target
    from foresee.run.build import open_log, table_layout
    from foresee.run.run_file import load_run
    from foresee.store.contract import layout_text

    config = load_run(run_file, overrides or ())
    name = name or config.run.name
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be a name in Kubernetes: lower-case letters, digits and hyphens, 40 at most; give --name"
        )
    layout = layout_text(table_layout(config, open_log(config)))
    text = run_file.read_text("utf-8")
    return config, Target(
        name=name, image=image, log=log_folder, data_claim=claim, run_file=text, layout=layout,
        overrides=tuple(overrides or ()),
    )  # fmt: skip


def _check_store(config: Any) -> None:
    """Parts of such a job are started again, and go on from what servers have kept."""
    from foresee.errors import ConfigError
    from foresee.store.registry import store_kind

    if not store_kind(config.tables.store).durable:
        raise ConfigError(
            f"tables.store is {config.tables.store}: rows would be gone with the first server that is lost; "
            "give --set tables.store=disk"
        )


def _yaml(manifests: list[dict[str, Any]]) -> str:
    import yaml

    return yaml.safe_dump_all(manifests, sort_keys=False)


def _write(text: str, out: Path | None) -> None:
    if out is None:
        print(text, end="")
        return
    from foresee.errors import ConfigError

    try:
        with os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error.strerror}); give a folder that can be written") from error
    print(f"{out} is written")
