"""How the ranks of a comm meet."""
