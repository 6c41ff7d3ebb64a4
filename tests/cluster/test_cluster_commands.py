"""`foresee cluster` as a person meets it."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from foresee.cluster.job import in_words
from foresee.errors import DataError, InputError, PlanError
from foresee.tools.cli.cluster import app

JOBS = "id,gpus,seconds,arrival,user\n1,2,3600,0,ann\n2,4,7200,0,bob\n3,1,600,300,ann\n"


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return path


def run(*arguments: object) -> str:
    """What it printed. No command says anything on the error stream if that is no terminal."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(a) for a in arguments])
    assert result.exit_code != 0 or result.stderr == ""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_plan_answers_explains_and_asks(jobs: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.json"
    new.write_text('{"id": "9", "gpus": 1, "seconds": 60}')
    out = tmp_path / "plan.json"
    text = run("plan", jobs, "--gpus", 4, "--explain", 2, "--what-if", "gpus=8", "--admit", new, "--json", out)
    assert "Plan of 3 jobs on 4 GPUs, policy guarded" in text
    assert "no plan can end before" in text
    assert "Job 2 needs 4 GPUs for 2 h 00 min." in text
    assert "What if gpus=8" in text
    assert "Job 9 needs 1 GPU for 60 s." in text
    content = json.loads(out.read_text())
    assert [entry["id"] for entry in content["jobs"]] == ["1", "3", "2"]
    assert content["metrics"]["gap"] >= 0
    assert content["rounds"][0] == ["1"]


def test_plan_exports_an_order(jobs: Path, tmp_path: Path) -> None:
    assert "scontrol update JobId=1 Priority=30" in run("plan", jobs, "--gpus", 4, "--export", "slurm")
    out = tmp_path / "order.yaml"
    run("plan", jobs, "--gpus", 4, "--export", "kueue", "--out", out)
    assert "WorkloadPriorityClass" in out.read_text()


def test_page_is_self_contained_and_follows_light_and_dark(jobs: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run("compare", jobs, "--gpus", 4, "--policies", "fifo,guarded", "--page", page)
    text = page.read_text(encoding="utf-8")
    without_library = re.sub(r"<script>/\*\*.*?</script>", "", text, flags=re.S)
    assert len(without_library) < 200_000
    assert not re.search(r"""(src|href)=["']https?:""", without_library)
    assert "prefers-color-scheme: dark" in without_library
    assert text.count('class="plotly-graph-div"') == 3
    assert "guarded (Themis)" in without_library


def test_simulate_compare_and_frontier(jobs: Path) -> None:
    assert "Per user" in run("simulate", jobs, "--gpus", 4, "--error", 0.3, "--seed", 2, "--estimator", "oracle")
    compared = run("compare", jobs, "--gpus", 4)
    assert all(name in compared for name in ("fifo", "themis", "shockwave", "guarded"))
    trade = run("frontier", jobs, "--gpus", 4, "--policies", "")
    assert "guarded, fairness 1 (default)" in trade
    assert " *" in trade


def test_plan_and_compare_give_the_same_figures(tmp_path: Path) -> None:
    """Both know the same of the jobs unless told otherwise."""
    path = tmp_path / "many.csv"
    rows = [f"{i},{1 + i % 3},,{5 + i}x{60 + 7 * i};{9 - i % 4}x{30 + i},{i * 90}" for i in range(14)]
    path.write_text("id,gpus,seconds,regimes,arrival\n" + "\n".join(rows))
    out = tmp_path / "plan.json"
    run("plan", path, "--gpus", 4, "--json", out)
    metrics = json.loads(out.read_text())["metrics"]
    compared = run("compare", path, "--gpus", 4, "--policies", "guarded")
    cells = [cell.strip() for cell in re.search(r"guarded.*", compared)[0].split("│")]  # type: ignore[index]
    assert cells[3] == in_words(metrics["jct_mean_seconds"])
    assert cells[5:7] == [f"{metrics['worst_rho']:.2f}", f"{metrics['unfair_share']:.1%}"]
    assert "estimates regimes" in compared


def test_one_is_not_plural(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("id,gpus,seconds\na,1,60\n")
    assert "Plan of 1 job on 1 GPU, policy guarded" in run("plan", path, "--gpus", 1, "--explain", "a")
    assert "1 job on 1 GPU" in run("compare", path, "--gpus", 1, "--policies", "fifo")


def test_analyse(jobs: Path, tmp_path: Path) -> None:
    table = tmp_path / "philly.csv"
    table.write_text("timestamp,duration,num_gpus,user\n2024-01-01 00:00:00,60,1,a\n2024-01-01 00:01:00,600,4,b\n")
    text = run("analyse", table, "--gpus", 4)
    assert "By size of gang" in text
    assert "– is not in the file" in text
    assert "Skew of GPU time" in text
    assert "Queueing by size of gang on 4 GPUs, simulated with fifo" in text


def test_a_shockwave_trace_brings_its_cluster(published: Path) -> None:
    text = run("simulate", published / "shockwave_trace_32gpu.json.gz")
    assert "on 32 GPUs" in text
    assert "Per class" in text


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["plan"], InputError, "does not say how many GPUs there are: give --gpus"),
        (["plan", "--gpus", "2"], PlanError, "job '2' cannot be planned: it asks for 4 GPUs and the cluster has 2"),
        (["plan", "--gpus", "4", "--policy", "best"], PlanError, "policy 'best' is not known"),
        (["plan", "--gpus", "4", "--explain", "x"], PlanError, "job 'x' is not in this plan"),
        (["plan", "--gpus", "4", "--format", "xml"], DataError, "format 'xml' is not known"),
        (["simulate", "--gpus", "4", "--estimator", "x"], InputError, "estimator 'x' is not known"),
        (["frontier", "--gpus", "4", "--policies", "x"], PlanError, "policy 'x' is not known"),
        (["frontier", "--gpus", "4", "--estimator", "x"], InputError, "estimator 'x' is not known"),
    ],
)
def test_mistakes_pass_through_as_sentences(
    jobs: Path, arguments: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(arguments[0], jobs, *arguments[1:])
