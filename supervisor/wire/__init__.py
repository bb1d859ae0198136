"""What parent and worker share: messages over a socket pair, and the scoreboard in shared memory.

    messages.py   what they tell each other
    channel.py    how it travels: neither side ever waits for the other
    board.py      what a worker does now, readable by the parent even after the worker's death

Elsewhere: who sends what when (parent, worker).
"""
