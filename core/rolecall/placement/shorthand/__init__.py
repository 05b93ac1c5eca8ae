"""``placement.layout``: a layout in one line, and the keys of the job file that it stands for."""
