"""Tables of models that a test changes."""

import json


def table_of(path):
    """Without its totals, which would no longer be right."""
    with open(path, encoding="utf-8") as file:
        return {key: value for key, value in json.load(file).items() if key != "totals"}
