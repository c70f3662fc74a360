"""The scenarios of the control design, with their bars and negative controls: see `table.py`."""
