"""What the demo does to its tables in Bigtable: pure and seeded, calls of every kind, and a model of the rows beside.

Hours are observed, measured later, and corrected again and again, with deletes of some of the corrections by their
times; deleted and written again, family by family or as a row; now and then a few neighbouring hours are dropped. Each
flight counts in its airport's hour; an hour's carriers are forgotten and counted again, and a few hours are dropped.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from deploy.local.demo.package_data import batches_of, known, lines_of
from deploy.local.demo.wide_tables import AIRPORT_TRAFFIC, CARRIERS, CORRECTED, HOURLY_WEATHER, OBSERVED, TOTALS
from deploy.local.platform.cells import (
    Call,
    Cells,
    CheckAndMutate,
    DeleteCells,
    DeleteFamily,
    DeleteRow,
    DropRows,
    Increment,
    MutateRow,
    MutateRows,
    Mutation,
    SetCell,
)

_TOLD_AT_ONCE: Final = 4
_ROWS_A_CALL: Final = 100
_MILLISECOND: Final = 1_000
_LATEST: Final = 9_999_999_999  # seconds since the epoch: what an hour is subtracted from, so that later ones are first
_NEIGHBOURS: Final = 4  # digits of a key that are left out of a prefix: 10,000 seconds, so three hours at most
_AT_FIRST: Final = (b"temp", b"dewp", b"wind_dir", b"wind_speed", b"wind_gust", b"precip", b"visib")
_LATER: Final = (b"humid", b"pressure")

Story = Iterator[Call]


@dataclass(frozen=True, slots=True)
class Hour:
    """One hour at one station: its key, when it was, and what was measured, as text."""

    row_key: bytes
    at: int
    measured: Mapping[bytes, bytes]

    def cells(self, names: Sequence[bytes]) -> list[Mutation]:
        """Return the calls that write some of what was measured."""
        there = [name for name in names if name in self.measured]
        return [SetCell(OBSERVED, name, self.at, self.measured[name]) for name in there]


@dataclass(frozen=True, slots=True)
class Departure:
    """What a flight counts for."""

    row_key: bytes
    carrier: bytes
    minutes_late: int

    @property
    def call(self) -> Increment:
        """Return the call that counts it."""
        late = [(TOTALS, b"minutes_late", self.minutes_late)] if self.minutes_late else []
        counted = [(TOTALS, b"departures", 1), (CARRIERS, self.carrier, 1)]
        return Increment(AIRPORT_TRAFFIC.name, self.row_key, [*counted, *late])


def read_hours(number: int) -> list[Hour]:
    """Return the first observations of the year, by time."""
    lines = sorted(lines_of("weather.csv"), key=lambda line: (line["time_hour"], line["origin"]))
    return [_hour(line) for line in islice(lines, number)]


def read_departures(number: int) -> list[Departure]:
    """Return the first flights of the year that departed."""
    departed = (line for line in lines_of("flights.csv.zip") if known(line["dep_time"], int) is not None)
    return [
        Departure(
            f"{line['origin']}#{line['time_hour'][:13]}".encode(),
            line["carrier"].encode(),
            max(0, known(line["dep_delay"], int) or 0),
        )
        for line in islice(departed, number)
    ]


class WideWorkload:
    """The calls of one run, and a model of both tables."""

    def __init__(
        self, hours: Sequence[Hour], departures: Sequence[Departure], loaded: int, seed: int = 2013, before: int = 0
    ) -> None:
        """``loaded`` of the hours, and as many flights, come first; so many flights were counted ``before`` them.

        Before a reader reads, that is. Hours never are: they have a change log, which knows of changes only.
        """
        self.tables: dict[str, Cells] = {HOURLY_WEATHER.name: Cells(), AIRPORT_TRAFFIC.name: Cells()}
        self._loaded = hours[:loaded]
        self._hours = {hour.row_key: hour for hour in hours}
        self._coming = deque(hours[loaded:])
        self._counted_before = departures[:before]
        self._counted = departures[before : before + loaded]
        self._departing = deque(departures[before + loaded :])
        self._corrections = 0
        self._random = random.Random(seed)  # noqa: S311 - repeatable, not secret

    @property
    def weather(self) -> Cells:
        """Return the hours as they are to be."""
        return self.tables[HOURLY_WEATHER.name]

    @property
    def traffic(self) -> Cells:
        """Return the counters as they are to be, but for the times of their cells."""
        return self.tables[AIRPORT_TRAFFIC.name]

    def before(self) -> Iterator[Call]:
        """Yield the calls that make what is there before anybody reads a change stream."""
        for departure in self._counted_before:
            yield self._apply(departure.call)[0]

    def load(self) -> Iterator[tuple[Call, int]]:
        """Yield the calls that make what comes first through the change streams, and how many rows each changes."""
        name = HOURLY_WEATHER.name
        for hours in batches_of(self._loaded, _ROWS_A_CALL):
            rows = [MutateRow(name, hour.row_key, hour.cells((*_AT_FIRST, *_LATER))) for hour in hours]
            yield self._apply(MutateRows(name, rows))
        for departure in self._counted:
            yield self._apply(departure.call)

    def changes(self, wanted: int) -> Iterator[tuple[Call, int]]:
        """Yield calls, with how many rows they change, until those are at least as many as wanted."""
        stories: list[Story] = []
        done = 0
        while done < wanted:
            while len(stories) < _TOLD_AT_ONCE:
                stories.append(self._next_story())
            story = self._random.choice(stories)
            call = next(story, None)
            if call is None:
                stories.remove(story)
            else:
                counted = self._apply(call)
                done += counted[1]
                yield counted

    def _apply(self, call: Call) -> tuple[Call, int]:
        return call, self.tables[call.table].apply(call)

    def _next_story(self) -> Story:
        chance = self._random.random()
        if self._coming and chance < 0.3:
            return self._observe(self._coming.popleft())
        if self._departing and chance < 0.6:
            return self._depart([self._departing.popleft() for _ in range(min(6, len(self._departing)))])
        if chance < 0.63:
            return self._drop_hours()
        if chance < 0.66:
            return self._drop_counters()
        stories: Sequence[Callable[[], Story]] = (self._correct, self._withdraw, self._replace, self._confirm)
        return self._random.choice((*stories, self._recount))()

    def _observe(self, hour: Hour) -> Story:
        """Report an hour; the rest is measured later."""
        yield MutateRow(HOURLY_WEATHER.name, hour.row_key, hour.cells(_AT_FIRST))
        later = hour.cells(_LATER)
        if later and hour.row_key in self.weather:
            yield MutateRow(HOURLY_WEATHER.name, hour.row_key, later)

    def _correct(self) -> Story:
        """Correct the wind again and again, delete the first corrections by their times, and the last for another."""
        hour = self._any_hour()
        times = []
        for speed in self._random.sample(range(1, 60), self._random.randint(3, 6)):
            self._corrections += 1
            times.append(hour.at + self._corrections * _MILLISECOND)
            yield self._mutate(hour, SetCell(CORRECTED, b"wind_speed", times[-1], str(speed).encode()))
        yield self._mutate(hour, DeleteCells(CORRECTED, b"wind_speed", times[0], times[2]))
        yield self._mutate(
            hour,
            DeleteCells(CORRECTED, b"wind_speed", times[-1]),
            SetCell(CORRECTED, b"wind_speed", times[0], b"7"),
            SetCell(CORRECTED, b"wind_gust", times[0], b"11"),
        )

    def _withdraw(self) -> Story:
        """Delete an hour and write it again."""
        hour = self._any_hour()
        if hour.row_key in self.weather:
            yield self._mutate(hour, DeleteRow())
        if hour.row_key not in self.weather:
            yield self._mutate(hour, *hour.cells((*_AT_FIRST, *_LATER)))

    def _replace(self) -> Story:
        """Delete what was observed and write some of it, all at once; the rest follows."""
        hour = self._any_hour()
        yield self._mutate(hour, DeleteFamily(OBSERVED), *hour.cells(_AT_FIRST[:3]))
        yield self._mutate(hour, *hour.cells((*_AT_FIRST[3:], *_LATER)))

    def _confirm(self) -> Story:
        """Write one thing where the hour has been corrected, and another where it has not."""
        hour = self._any_hour()
        yield CheckAndMutate(
            HOURLY_WEATHER.name,
            hour.row_key,
            CORRECTED,
            b"wind_speed",
            then=[SetCell(CORRECTED, b"confirmed", hour.at, b"corrected")],
            otherwise=[SetCell(CORRECTED, b"confirmed", hour.at, b"as observed"), DeleteCells(OBSERVED, b"dewp")],
        )

    def _drop_hours(self) -> Story:
        """Drop a few hours of a station that follow each other, and write them again, but for one."""
        prefix = self._any_hour().row_key[:-_NEIGHBOURS]
        gone = [self._hours[row_key] for row_key in self.weather if row_key.startswith(prefix)]
        yield DropRows(HOURLY_WEATHER.name, prefix)
        for hour in gone[1:]:
            if hour.row_key not in self.weather:
                yield self._mutate(hour, *hour.cells((*_AT_FIRST, *_LATER)))

    def _depart(self, departures: Sequence[Departure]) -> Story:
        """Count one flight after the other."""
        for departure in departures:
            yield departure.call

    def _recount(self) -> Story:
        """Forget an hour's carriers, and then count a flight."""
        row_key = self._random.choice(list(self.traffic))
        yield MutateRow(AIRPORT_TRAFFIC.name, row_key, [DeleteFamily(CARRIERS)])
        yield Increment(AIRPORT_TRAFFIC.name, row_key, [(CARRIERS, b"UA", 1), (TOTALS, b"departures", 1)])

    def _drop_counters(self) -> Story:
        """Drop up to ten hours at an airport, and then count a flight in one of them."""
        row_key = self._random.choice(list(self.traffic))
        yield DropRows(AIRPORT_TRAFFIC.name, row_key[:-1])
        yield Increment(AIRPORT_TRAFFIC.name, row_key, [(CARRIERS, b"B6", 1), (TOTALS, b"departures", 1)])

    def _any_hour(self) -> Hour:
        return self._hours[self._random.choice(list(self.weather))]

    @staticmethod
    def _mutate(hour: Hour, *mutations: Mutation) -> MutateRow:
        return MutateRow(HOURLY_WEATHER.name, hour.row_key, mutations)


def _hour(line: Mapping[str, str]) -> Hour:
    seconds = int(datetime.strptime(line["time_hour"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp())
    names = (*_AT_FIRST, *_LATER)
    measured = {name: line[name.decode()].encode() for name in names if line[name.decode()] not in ("NA", "")}
    return Hour(f"{line['origin']}#{_LATEST - seconds:010}".encode(), seconds * 1_000_000, measured)
