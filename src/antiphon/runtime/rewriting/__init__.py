"""The pass after the answer: its text is rewritten by rules or by a model before it is final."""
