"""The checks that decide whether a fast path may be used: reference, trial rows, tolerances and refusals.

The *reference* is the model's own code, on one text at a time. A *fast path* is a training form (``training_check``,
``rehearsal``) or a scoring route (``scoring_check``); it is used only where its numbers are the reference's. What
changes from step to step or from request to request is checked as it comes (``plan_check``, ``handover_check``,
``encoding_check``, ``request_check``).
"""
