"""What `network.py` is made of: hosts with slow links, the log all sides train on, and the sides."""
