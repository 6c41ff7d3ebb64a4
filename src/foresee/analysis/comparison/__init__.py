"""All policies side by side on the first steps of a log: what each would move, and what a step would take.

policies.py   what can be compared, and what does not exist for so many trainers
sample.py     the steps that are compared, held in memory, and the cache sizes that make sense for them
compare.py    plans the steps once for each policy, cache and number of trainers; counts and predicts
"""

from foresee.analysis.comparison.compare import Outcome, Question, compare, num_plans
from foresee.analysis.comparison.policies import OURS, CacheSize, Policy, Sample, absence, policies_named, take_sample

__all__ = [
    "OURS",
    "CacheSize",
    "Outcome",
    "Policy",
    "Question",
    "Sample",
    "absence",
    "compare",
    "num_plans",
    "policies_named",
    "take_sample",
]
