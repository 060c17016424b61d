"""Make sets.json: a digit set with many differences and few sums, score above the paper's 1.109543.

Method  the numbers of 10 digits in base 5, no digit over 3, the digit sum at most 5 (2,893 of them). Few digits are
        not zero, so that most differences are new; a digit of 3 lets sums carry into each other: fewer sums. The best
        of a few hundred families (number of digits, largest digit, digit sum, base) below 3,000 elements.
Run     python tests/constructions/make_sets.py OUT.json
Expect  score 1.137346843678377 (README.md beside this file)
"""

import itertools
import json
import sys

DIGITS, LARGEST, SUM, BASE = 10, 3, 5, 5


def digit_set() -> list[int]:
    """The elements in increasing order."""
    tails = {0: {0}}  # digit sum -> numbers
    for position in range(DIGITS):
        grown: dict[int, set[int]] = {}
        for (total, numbers), digit in itertools.product(tails.items(), range(LARGEST + 1)):
            if total + digit <= SUM:
                grown.setdefault(total + digit, set()).update(u + digit * BASE**position for u in numbers)
        tails = grown
    return sorted(set().union(*tails.values()))


if __name__ == "__main__":
    with open(sys.argv[1], "w") as file:
        json.dump({"name": "own, made by make_sets.py", "U": digit_set()}, file)
