"""Readers of the public traces of Helios, Alibaba PAI and Gavel, on rows of their shape."""

import json
from pathlib import Path

import pytest

from foresee.cluster.formats import format_of, read_jobs
from foresee.errors import DataError

HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:42:27,2020-06-09 18:46:36,249,60
1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
1425513,uzqls,vcpDC,0,1,1,CANCELLED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-17 14:15:21,675233,0
1425514,uzqls,vcpDC,8,1,1,CANCELLED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-09 18:41:28,0,0
"""
PAI_TASKS = """b4f1,worker,2.0,Terminated,1000.0,4600.0,600.0,29.3,100.0,V100
b4f1,ps,1.0,Terminated,900.0,4600.0,600.0,29.3,,
c0de,tensorflow,1.0,Failed,2000.0,2500.0,600.0,29.3,25.0,T4
c0df,worker,3.0,Terminated,2100.0,2700.0,600.0,29.3,50.0,T4
dead,tensorflow,1.0,Running,2000.0,,600.0,29.3,100.0,T4
"""
PAI_HEADER = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
GAVEL = """\
ResNet-18 (batch size 128)\tpython3 main.py\timage\t--num_steps\t1\t9000\t4\t1\t-1.000000\t600
LM (batch size 20)\tpython main.py\tlm\t--steps\t1\t500\t1\t2\t-1.000000\t0
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_helios(tmp_path: Path) -> None:
    path = write(tmp_path, "cluster_log.csv", HELIOS)
    assert format_of(path) == "helios"
    read = read_jobs(path)
    first, second = read.records
    assert (first.job.id, first.job.gpus, first.job.exclusive_seconds, first.job.kind) == ("1425511", 1, 36848, "vcJkd")
    assert (second.job.arrival_seconds, second.wait_seconds, second.num_servers, second.status) == (26, 60, 1, "FAILED")
    assert read.notes == ("2 jobs without GPUs or run time were left out",)
    with pytest.raises(DataError, match=r"cluster_log.csv:2: submit_time is 'soon'"):
        read_jobs(write(tmp_path, "cluster_log.csv", HELIOS.replace("2020-06-09 18:41:27", "soon")))


@pytest.mark.parametrize("header", ["", PAI_HEADER])
def test_pai_tasks_with_and_without_their_header(tmp_path: Path, header: str) -> None:
    path = write(tmp_path, "pai_task_table.csv", header + PAI_TASKS)
    read = read_jobs(path, None if header else "pai")
    found = [(r.job.id, r.job.gpus, r.job.arrival_seconds, r.job.exclusive_seconds, r.status) for r in read.records]
    assert found == [
        ("b4f1", 2, 0, 3700, "Terminated"),  # worker and parameter server together
        ("c0de", 1, 1100, 500, "Failed"),  # a quarter of a GPU is planned as one
        ("c0df", 2, 1200, 600, "Terminated"),
    ]
    assert read.notes == ("1 job without GPUs or run time was left out",)


def test_pai_job_table_of_the_simulator(tmp_path: Path) -> None:
    text = "job_id,user,num_gpu,num_inst,submit_time,duration,wait_time\n1,ann,0.5,4,100,60,5\n2,bob,,1,110,60,\n"
    path = write(tmp_path, "jobs.csv", text)
    assert format_of(path) == "pai"
    (record,) = read_jobs(path).records
    assert (record.job.gpus, record.job.user, record.job.arrival_seconds, record.wait_seconds) == (2, "ann", 0, 5)


def test_gavel_takes_speeds_from_the_table_above(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    path = write(tmp_path / "traces", "small.trace", GAVEL)
    assert format_of(path) == "gavel"
    with pytest.raises(DataError, match=r"put simulation_throughputs.json of Gavel into its folder"):
        read_jobs(path)
    speeds = {"('ResNet-18 (batch size 128)', 4)": {"null": 30.0}, "('LM (batch size 20)', 1)": {"null": 5.0}}
    table = write(tmp_path, "simulation_throughputs.json", json.dumps({"v100": speeds}))
    first, second = read_jobs(path).jobs
    assert (first.exclusive_seconds, first.gpus, first.weight, first.kind) == (100, 1, 2, "LM (batch size 20)")
    assert (second.exclusive_seconds, second.gpus, second.arrival_seconds) == (300, 4, 600)
    table.write_text('{"v100": {}}')
    with pytest.raises(DataError, match=r"small.trace:1: ResNet-18 \(batch size 128\) on 4 GPUs has no speed in"):
        read_jobs(path)
    table.write_text('{"k80": {}}')
    with pytest.raises(DataError, match="no speeds of v100 in it"):
        read_jobs(path)
