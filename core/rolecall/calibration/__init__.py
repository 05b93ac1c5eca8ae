"""How far a reward agrees with labels that people gave: reading them, scoring, figures. Without Ray."""
