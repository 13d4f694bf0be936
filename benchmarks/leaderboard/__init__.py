"""A leaderboard: who predicts the public measured points best, by rules that anyone can check.

python -m benchmarks.leaderboard

``points.json``
    The points: made of ``scenarios/validation`` by ``python -m benchmarks.leaderboard.gather``.
``folds.py``
    What an entrant may see when it answers what.
``adapters/``
    Entrants: a program that reads JSON and prints times, or a class.
``answers.json``
    What simdp answered, for it takes long: ``--replay`` asks it again.
``scores.json``
    What all of this came to, of which ``docs/leaderboard.md`` is made.
"""
