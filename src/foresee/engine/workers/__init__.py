"""Several trainers of one model: what they say to each other, and the life of one of them."""
