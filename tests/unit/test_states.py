"""The table of a worker's states, and what its end asks for."""

import pytest

from supervisor import exits
from supervisor.parent.states import NEXT, Happened, Restart, State, restart


def test_every_living_state_knows_every_event() -> None:
    living = [state for state in State if state is not State.EXITED]
    assert set(NEXT) == {(state, what) for state in living for what in Happened}


def test_nothing_leaves_exited_and_nothing_undoes_a_kill() -> None:
    assert all(start is not State.EXITED for start, _ in NEXT)
    assert {NEXT[State.KILLED, what] for what in Happened} == {State.KILLED, State.EXITED}


@pytest.mark.parametrize(
    ("code", "caused", "what"),
    [
        (exits.CONFIG, None, Restart.STOP_SERVICE),
        (exits.CONFIG, "drain", Restart.STOP_SERVICE),
        (exits.OK, None, Restart.AT_ONCE),
        (exits.CUT, None, Restart.AT_ONCE),
        (-9, "deadline", Restart.AT_ONCE),
        (-9, "fence", Restart.AT_ONCE),
        (-9, None, Restart.WITHIN_BUDGET),
        (-11, None, Restart.WITHIN_BUDGET),
        (1, None, Restart.WITHIN_BUDGET),
        (None, None, Restart.WITHIN_BUDGET),
    ],
)
def test_what_an_end_asks_for(code: int | None, caused: str | None, what: Restart) -> None:
    assert restart(code, caused) is what
