"""What parent and worker share: messages over a socket pair, and the scoreboard in shared memory.

    messages.py   what they tell each other
    channel.py    how it travels: neither side ever waits for the other
    board.py      what a worker does now, readable by the parent even after the worker's death
    handed.py     what a program beside the workers is handed, and how it learns that the parent is gone

Elsewhere: who sends what when (parent, worker).
"""
