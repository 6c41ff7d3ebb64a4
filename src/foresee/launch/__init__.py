"""Where the processes of a run live: started, watched, restarted and stopped.

An `engine` starts parts (servers, planner, workers) and reports their ends; `processes` is the one for this machine,
`ray_engine` the one for a Ray cluster. `supervisor` decides, by the pure rules of `decisions`, what is started again.
`deploy` writes files for Slurm, JobSet and KubeRay.

Trains nothing itself and analyzes nothing; must not import `graph` or `tools`.
"""
