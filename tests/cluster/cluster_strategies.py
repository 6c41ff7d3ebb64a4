"""Random queues and clusters for property tests."""

from hypothesis import strategies as st

from foresee.cluster.job import Cluster, Job, Regime


@st.composite
def jobs(draw: st.DrawFn, gpus_max: int = 4, num_max: int = 12) -> list[Job]:
    """Jobs of one to three regimes; lengths span less than a round to many."""
    count = draw(st.integers(1, num_max))
    return [
        Job(
            id=f"job-{index}",
            gpus=draw(st.integers(1, gpus_max)),
            regimes=tuple(
                Regime(num_units=draw(st.integers(1, 20)), seconds_per_unit=draw(st.floats(1.0, 60.0)), batch_size=size)
                for size in range(8, 8 + draw(st.integers(1, 3)))
            ),
            arrival_seconds=float(draw(st.integers(0, 900))),
            weight=draw(st.sampled_from([0.5, 1.0, 2.0])),
            user=draw(st.sampled_from(["ann", "bob"])),
        )
        for index in range(count)
    ]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    return Cluster(
        gpus=draw(st.integers(4, 9)),
        round_seconds=draw(st.sampled_from([60.0, 120.0])),
        restart_seconds=draw(st.sampled_from([0.0, 20.0])),
        gpus_per_server=draw(st.sampled_from([None, 2, 4])),
        locality_penalty=draw(st.sampled_from([0.0, 0.25])),
    )
