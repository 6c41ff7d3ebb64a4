"""What looks at plans and runs: the command line, planning without training, explanation, verification, reports.

    cli           the command `foresee`; typer is imported only here
    forecast, comparison, simulation, bill, cost    what a plan would move, take and cost
    explain       one row's life, or one step, as figures and sentences
    verify, fsck  whether a run or a folder is right
    report        pages of runs, comparisons and simulations; plotly is imported only here

May import everything; nothing imports it.
"""
