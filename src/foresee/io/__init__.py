"""Files, storage by URL and numbers that every package needs; knows files, not what is in them.

    files, folders, direct    durable writes, folders that appear whole or not at all, direct I/O
    storage, file_systems, urls, uploads, readahead    the same by URL, and copies made in the background
    bounded_json    JSON documents from outside, with limits on size, depth and values
    hashing         counter-based pseudo-random numbers
    failpoints, logs, machine, optional, units    crash points, logging, limits of this machine, extras

Must not import any other package of foresee, nor torch.
"""
