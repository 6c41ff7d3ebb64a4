"""A cluster on paper: the real planner over some steps of a log, and a cost model for the machines that are not there.

synthetic_stream.py   batches of a log of any size, without a file
speeds.py             what a row costs a processor, timed on this machine
simulate.py           plans for so many trainers, predicts the step, and adds up memory and plan bytes
"""

from foresee.analysis.simulation.simulate import Cluster, RowTimes, Simulated, SyntheticStream, simulate, time_rows

__all__ = ["Cluster", "RowTimes", "Simulated", "SyntheticStream", "simulate", "time_rows"]
