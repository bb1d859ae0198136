"""The pages of the dashboard, in the order of its navigation. A page is a line here and a route of that path."""

from typing import Final, NamedTuple


class Entry(NamedTuple):
    """A page in the navigation; `path` is below the dashboard's root."""

    name: str
    title: str
    path: str


NAV: Final = (
    Entry("overview", "Overview", "/"),
    Entry("jobs", "Jobs", "/jobs"),
    Entry("queues", "Queues", "/queues"),
    Entry("schedules", "Schedules", "/schedules"),
    Entry("outbox", "Outbox", "/outbox"),
    Entry("health", "Health", "/health"),
)
