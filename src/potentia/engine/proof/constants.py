"""Numbers and texts that several checks share."""

TRIAL_SLOTS = 3  # adapters that a training form or a scoring route is tried with
SHAPE_PADDING = 5  # tokens that change a row's shape, to measure how the model's own 16 bits round
REPORT_HINT = "this is an error in Potentia, not in the model: please report it with the model's name and the task"
