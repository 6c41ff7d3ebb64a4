"""A run file in, a frozen configuration or one sentence out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from foresee.errors import ConfigError
from foresee.run.config import RunConfig, Section
from foresee.run.config_file import changed_result_keys, dump_run, load_run, run_name

SMALLEST = "log: data/log\nrun: runs/a\ncache: {rows: 100}\n"
DOCS = Path(__file__).parents[3] / "docs" / "run-file.md"


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(SMALLEST)
    return file


def test_the_smallest_run_file_has_defaults_for_the_rest(run_file: Path) -> None:
    config = load_run(run_file)
    assert config.cache.rows == 100
    assert config.train.batch_size == 2048
    assert config.tables_folder == run_file.parent / "runs" / "a" / "tables"


def test_paths_start_at_the_file_and_in_overrides_at_the_current_folder(run_file: Path) -> None:
    config = load_run(run_file, ["run=elsewhere"])
    assert config.log == run_file.parent / "data" / "log"
    assert config.run == Path("elsewhere")


def test_overrides_take_the_place_of_the_file(run_file: Path) -> None:
    config = load_run(run_file, ["cache.share=0.5", "train.optimizer.lr=1e-3", "model.options.top=[3, 4]"])
    assert (config.cache.rows, config.cache.share) == (None, 0.5)
    assert config.train.optimizer.lr == 0.001
    assert config.model.options == {"top": [3, 4]}


def test_a_number_with_an_exponent_is_a_number(run_file: Path) -> None:
    run_file.write_text(SMALLEST + "train: {optimizer: {lr: 1e-4}}\n")
    assert load_run(run_file).train.optimizer.lr == 0.0001


def test_a_section_whose_keys_are_all_commented_out_has_its_defaults(run_file: Path) -> None:
    run_file.write_text(SMALLEST + "train:\n#  epochs: 3\n")
    assert load_run(run_file).train.epochs == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("log: a\nrun: b\ncache: {rowz: 3}\n", "run.yaml: cache.rowz: unknown key; did you mean cache.rows?"),
        (SMALLEST + "wurst: 3\n", "run.yaml: wurst: unknown key; the keys here are log, run, storage, model"),
        ("", "run.yaml: the file is empty"),
        ("# nothing\n", "run.yaml: the file is empty"),
        ("- a\n", "run.yaml: this is no list of keys"),
        ("log: [\n", "run.yaml:2: this is not YAML"),
        (SMALLEST + "log: x\n", "run.yaml:4: this is not YAML (log stands here twice)"),
        ("log: a\nrun: b\n", "run.yaml: cache: this key is missing"),
        ("log:\nrun: b\ncache: {rows: 3}\n", "run.yaml: log: give a path"),
        ("log: a\nrun: b\ncache: {}\n", "cache: give the size of the cache either as rows or as a share"),
        ("log: a\nrun: b\ncache: {rows: 3, share: 0.1}\n", "cache: give the size of the cache either as rows or as"),
        ("log: a\nrun: b\ncache: 3\n", "run.yaml: cache: found 3, expected keys below it"),
        ("log: a\nrun: b\ncache: {rows: '3'}\n", "run.yaml: cache.rows: found '3'; input should be a valid integer"),
        (SMALLEST + "train: {epochs: 1.5}\n", "run.yaml: train.epochs: found 1.5; input should be a valid integer"),
        (SMALLEST + "train: {batch_size: 0}\n", "train.batch_size: found 0; input should be greater than or"),
        ("log: a\nrun: b\ncahce: {rows: 3}\n", "run.yaml: cahce: unknown key; did you mean cache?"),
        (SMALLEST + "train: {best: {patience: 3}}\n", "train: best.metric is missing: say which figure is compared"),
        (SMALLEST + "train: {best: {metric: auc, patience: 3}}\n", "say how often with evaluate_every_steps"),
        (SMALLEST + "train: {best: {metric: gauc}}\n", "there is no 'gauc'; choose one of auc, log_loss"),
        (
            SMALLEST + "train: {best: {metric: ndcg@5}, ranking: {group: user}}\n",
            "there is no 'ndcg@5'; choose one of auc, log_loss, normalised_entropy, gauc, ndcg@10, recall@10",
        ),
        (SMALLEST + "train: {ranking: {at: [0]}}\n", "train.ranking.at: found [0]; give whole numbers from 1 up"),
        (SMALLEST + "tables: {optimizer: {lr: .nan}}\n", "tables.optimizer.lr: found nan; input should be a finite"),
        (SMALLEST + "train: {tensorboard: 1}\n", "train.tensorboard: found 1; input should be a valid boolean"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_file_and_key(run_file: Path, text: str, sentence: str) -> None:
    run_file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_run(run_file)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("train.batchsize=3", "--set train.batchsize=3: unknown key; did you mean train.batch_size?"),
        ("nothing=3", "--set nothing=3: unknown key; the keys here are log"),
        ("train.epochs", "--set train.epochs: expected key=value"),
        ("train.epochs=[", "--set train.epochs=[:1: this is not YAML"),
        ("train.epochs=many", "run.yaml with --set: train.epochs: found 'many'"),
    ],
)
def test_what_is_wrong_with_an_override_is_one_sentence(run_file: Path, override: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run(run_file, [override])
    assert sentence in str(caught.value)


def test_a_missing_file_a_folder_and_bytes_are_sentences(tmp_path: Path) -> None:
    binary = tmp_path / "run.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, sentence in (
        (tmp_path / "none.yaml", "there is no such file"),
        (tmp_path, "this is a folder"),
        (binary, "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            load_run(path)


def test_a_written_configuration_reads_as_the_same_from_its_folder(run_file: Path) -> None:
    config = load_run(run_file, ["cache.share=0.25", "tables.optimizer.name=lazy_adam"])
    folder = run_file.parent / "runs" / "a"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_run(config, folder))
    again = load_run(folder / "config.yaml")
    assert Path(again.log).resolve() == Path(config.log).resolve()
    assert again.run.resolve() == config.run.resolve()
    assert again.model_copy(update={"log": config.log, "run": config.run}) == config


def test_a_run_that_has_a_storage_is_understood_in_any_folder(run_file: Path, tmp_path: Path) -> None:
    """What is inside moves with it, what is outside stays where it is."""
    config = load_run(run_file, ["storage=s3://bucket/a"])
    elsewhere = tmp_path / "another" / "place" / "of" / "it"
    elsewhere.mkdir(parents=True)
    (elsewhere / "config.yaml").write_text(dump_run(config, config.run))
    again = load_run(elsewhere / "config.yaml")
    assert (again.run, again.log) == (elsewhere, Path(config.log).absolute())


def test_a_run_is_called_as_its_url_is(run_file: Path) -> None:
    assert run_name(load_run(run_file)) == "a"
    assert run_name(load_run(run_file, ["run=s3://bucket/runs/first?region=x"])) == "first"
    assert run_name(load_run(run_file, ["storage=s3://bucket/runs/first"])) == "a"


def test_only_keys_that_change_the_result_count_as_changed(run_file: Path) -> None:
    old = load_run(run_file)
    free = ["run=b", "cache.rows=7", "cache.planner=lru", "train.epochs=9", "train.log_every_steps=1", "log=moved"]
    assert list(changed_result_keys(old, load_run(run_file, free))) == []
    bound = load_run(run_file, ["model.dim=8", "tables.optimizer.lr=0.5", "train.seed=3"])
    assert list(changed_result_keys(old, bound)) == [
        ("model.dim", 16, 8),
        ("tables.optimizer.lr", 0.05, 0.5),
        ("train.seed", 0, 3),
    ]


def test_the_docs_explain_every_key_in_the_words_of_the_code() -> None:
    text = DOCS.read_text("utf-8")
    assert [row for row in documented_rows(RunConfig) if row not in text] == []


def documented_rows(section: type[Section], prefix: str = "") -> Iterator[str]:
    """The rows that docs/run-file.md has to have."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from documented_rows(field.annotation, f"{prefix}{name}.")
            continue
        default = "required" if field.is_required() else "" if field.default is None else f"`{field.default}`"
        if field.default_factory is not None:
            default = "`{}`"
        yield f"| `{prefix}{name}` | {default} | {field.description} |"
