"""What workers say to each other: schedules of transfers, the protocol of a step, dense sums, the link's order."""
