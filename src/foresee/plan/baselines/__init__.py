"""What policies for several workers share: ownership with its kernels, placement of samples, the frame of protocols
that add at the store, and the caches of those that are there to be compared with.
"""
