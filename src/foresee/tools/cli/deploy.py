"""`foresee deploy`: a script for Slurm, or manifests for Kubernetes, that run a run file's parts on many machines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from foresee.tools.cli.options import RunFile, Set

app = typer.Typer(
    help="Write what Slurm or Kubernetes needs to run a run file on many machines: a script, or manifests.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where it goes; left out: printed.")]
Nodes = Annotated[int, typer.Option("--nodes", min=1, help="Machines that share the parts of the run.")]
Image = Annotated[str, typer.Option("--image", help="Container image with foresee in it.")]
Claim = Annotated[
    str | None,
    typer.Option(
        "--data-claim",
        metavar="NAME",
        help="Volume claim, ReadWriteMany, for log and run folder. Needed unless the log has a URL and the run a "
        "storage.",
    ),
]
Log = Annotated[
    str | None,
    typer.Option(
        "--log-folder", metavar="PATH", help="The prepared log inside that volume. Needed unless the log has a URL."
    ),
]
EnvSecret = Annotated[
    str | None,
    typer.Option(
        "--env-secret",
        metavar="NAME",
        help="A Secret of the cluster whose keys become variables of all pods, such as AWS_ACCESS_KEY_ID.",
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="Of the job; left out: the name of the run.")]


@app.command()
def slurm(
    run_file: RunFile,
    overrides: Set = None,
    nodes: Nodes = 1,
    command: Annotated[str, typer.Option("--command", help="How nodes call foresee.")] = "foresee",
    scratch: Annotated[
        str | None,
        typer.Option(
            "--scratch",
            metavar="PATH",
            help="Where nodes keep run folder and tables of a run that has a storage: on disks of their own, the same "
            "path everywhere, in which variables are the job's. Left out: ${TMPDIR:-/tmp}.",
        ),
    ] = None,
    out: Out = None,
) -> None:
    """A script for sbatch: servers, planner and workers on the nodes of one job.

    The run file has to be on a path that all nodes see, and so have log, run
    folder and tables, unless the log has a URL and the run a storage. Lost parts
    are started again; before its time is over the job commits, and is queued
    again.

    [bold]Examples[/]

      foresee deploy slurm run.yaml --set distributed.workers=8 --nodes 4 --out job.sh && sbatch job.sh
      foresee deploy slurm run.yaml --set run=s3://bucket/runs/first --scratch '$TMPDIR' --nodes 4 --out job.sh
    """
    from foresee.launch.deploy.sizes import sizes_of
    from foresee.launch.deploy.slurm import script
    from foresee.run.config_file import load_run

    file, given = run_file.absolute(), overrides or []
    config = load_run(file, given)
    _check_store(config)
    sizes = sizes_of(config)
    _write(script(config, file, sizes, nodes=nodes, command=command, overrides=given, scratch=scratch), out)


@app.command()
def jobset(
    run_file: RunFile,
    image: Image,
    data_claim: Claim = None,
    log_folder: Log = None,
    env_secret: EnvSecret = None,
    overrides: Set = None,
    name: Name = None,
    out: Out = None,
) -> None:
    """Manifests of a JobSet: a Secret, a ConfigMap, a volume claim for rows, and the parts as replicated jobs.

    They hold a token and a private key made for this run: keep the file to yourself.
    Where the log has a URL and the run a storage, no volume is needed: pods keep
    rows on disks of their nodes, and have them back from the storage.

    [bold]Examples[/]

      foresee deploy jobset run.yaml --image foresee:0.3 --data-claim logs --log-folder criteo --out jobset.yaml
      foresee deploy jobset run.yaml --set log=s3://bucket/criteo --set run=s3://bucket/runs/first
        --image foresee:0.3 --env-secret storage-keys --out jobset.yaml
    """
    from foresee.launch.deploy import kubernetes
    from foresee.launch.deploy.sizes import sizes_of

    config, target = _target(
        run_file,
        overrides or [],
        name,
        image=image,
        data_claim=data_claim,
        log_folder=log_folder,
        env_secret=env_secret,
    )
    _check_store(config)
    _write(_yaml(kubernetes.jobset(config, sizes_of(config), target)), out)


@app.command()
def kuberay(
    run_file: RunFile,
    image: Image,
    data_claim: Claim = None,
    log_folder: Log = None,
    env_secret: EnvSecret = None,
    overrides: Set = None,
    nodes: Nodes = 1,
    name: Name = None,
    out: Out = None,
) -> None:
    """Manifests of a RayJob: KubeRay makes a cluster, and `foresee train --on ray` runs there.

    [bold]Examples[/]

      foresee deploy kuberay run.yaml --nodes 4 --image foresee:0.3 --data-claim logs --log-folder criteo
      foresee deploy kuberay run.yaml --set log=s3://bucket/criteo --set run=s3://bucket/runs/first
        --nodes 4 --image foresee:0.3 --env-secret storage-keys
    """
    from foresee.launch.deploy import kubernetes
    from foresee.launch.deploy.sizes import sizes_of

    config, target = _target(
        run_file,
        overrides or [],
        name,
        image=image,
        data_claim=data_claim,
        log_folder=log_folder,
        env_secret=env_secret,
    )
    _write(_yaml(kubernetes.kuberay(config, sizes_of(config), target, nodes=nodes)), out)


def _target(
    run_file: Path,
    overrides: list[str],
    name: str | None,
    *,
    image: str,
    data_claim: str | None,
    log_folder: str | None,
    env_secret: str | None,
) -> tuple[Any, Any]:
    from foresee.errors import ConfigError
    from foresee.launch.deploy.kubernetes import DATA, NAME, Target
    from foresee.run.build import open_log, table_layout
    from foresee.run.config_file import load_run, run_name
    from foresee.store.layout import layout_text

    config = load_run(run_file, overrides)
    name = name or run_name(config)
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be a name in Kubernetes: lower-case letters, digits and hyphens, 40 at most; give --name"
        )
    _check_volume(config, data_claim, log_folder)
    layout = layout_text(table_layout(config, open_log(config)))
    return config, Target(
        name=name,
        image=image,
        run_file=run_file.read_text("utf-8"),
        layout=layout,
        overrides=tuple(overrides),
        log=str(config.log) if log_folder is None else f"{DATA}/{log_folder}",
        storage=config.storage,
        data_claim=data_claim,
        env_secret=env_secret,
    )


def _check_volume(config: Any, data_claim: str | None, log_folder: str | None) -> None:
    """What has no URL is on a volume that all pods see."""
    from foresee.errors import ConfigError
    from foresee.io.file_systems import is_url

    if log_folder is None and not is_url(config.log):
        raise ConfigError(
            f"log is {config.log}, which pods do not see; say with --data-claim and --log-folder where it is for them, "
            "or give --set log=URL"
        )
    if data_claim is None and log_folder is not None:
        raise ConfigError(f"--log-folder {log_folder} is a folder of a volume; give its claim with --data-claim, too")
    if data_claim is None and config.storage is None:
        raise ConfigError(
            f"run is {config.run}, which has no storage, so that pods that are started again would find nothing; give "
            "--set run=URL, or --data-claim for a volume with its folder"
        )


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
