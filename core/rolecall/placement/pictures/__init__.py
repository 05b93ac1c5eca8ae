"""A plan as people and scripts read it: a map in a terminal, SVG, HTML, and JSON."""
