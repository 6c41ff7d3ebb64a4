"""Where rows live when no worker holds them: the contract, memory, disk, servers."""
