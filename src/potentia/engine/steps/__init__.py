"""One training step of all lanes: divide the rows into passes, add up the gradients, update every lane at once.

A lane is one fine-tuning (``lane_spec``), a row one example in one update, a pass one forward and backward through the
frozen model for rows of many lanes.
"""
