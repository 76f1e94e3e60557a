"""What the demo does to its tables: pure and seeded, so that two runs of one size commit the same changes.

The flights that are not loaded yet happen: they are inserted as scheduled, depart and arrive. Between that, rows are
changed several times in successive transactions, deleted and inserted again, replaced, and changed together with rows
of other tables; and an airline is deleted with all its flights and comes back.
"""

import random
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deploy.local.demo.flights import Flight, FlightData, batches_of
from deploy.local.demo.schema import KEYS, TABLES
from deploy.local.source import Row, Value, Write

Key = tuple[Value, ...]
Story = Iterator[list[Write]]

_TOLD_AT_ONCE: Final = 4
_FLIGHTS_AT_ONCE: Final = 6
_LARGEST_AIRLINE_TO_CLOSE: Final = 12
_ROWS_A_TRANSACTION: Final = 500


@dataclass(frozen=True, slots=True)
class Transaction:
    """Mutations that are committed together, and how many rows of each table they change (cascades included)."""

    writes: Sequence[Write]
    changes: Mapping[str, int]


class Workload:
    """The changes of one run, and a model of the tables that says what they must hold in the end."""

    def __init__(self, data: FlightData, loaded: int, seed: int = 2013) -> None:
        self._data = data
        self._loaded = data.flights[:loaded]
        self._coming = deque(batches_of(data.flights[loaded:], _FLIGHTS_AT_ONCE))
        self._random = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self.tables: dict[str, dict[Key, dict[str, Value]]] = {table: {} for table in TABLES}

    def load(self) -> Iterator[Transaction]:
        """Yield the rows that are there from the start, many to a transaction."""
        rows: Mapping[str, Sequence[Row]] = {
            "airlines": self._data.airlines,
            "airports": self._data.airports,
            "planes": self._data.planes,
            "flights": [flight.row for flight in self._loaded],
        }
        for table in TABLES:
            for batch in batches_of(rows[table], _ROWS_A_TRANSACTION):
                yield self._transaction([Write("insert", table, row) for row in batch])

    def changes(self, wanted: int) -> Iterator[Transaction]:
        """Yield transactions until they have changed at least as many rows as wanted."""
        stories: list[Story] = []
        done = 0
        while done < wanted:
            while len(stories) < _TOLD_AT_ONCE:
                stories.append(self._next_story())
            story = self._random.choice(stories)
            writes = next(story, None)
            if writes is None:
                stories.remove(story)
            elif writes:
                transaction = self._transaction(writes)
                done += sum(transaction.changes.values())
                yield transaction

    def _next_story(self) -> Story:
        kinds = [self._delay, self._withdraw, self._swap_plane, self._replace_plane]
        if self._coming and self._random.random() < 0.6:
            return self._fly(self._coming.popleft())
        if self._random.random() < 0.1:
            return self._close_airline()
        return self._random.choice(kinds)()

    def _fly(self, flights: Sequence[Flight]) -> Story:
        """Insert flights as scheduled, and update their departures and arrivals as they happened."""
        carriers = {carrier for (carrier,) in self.tables["airlines"]}
        flights = [flight for flight in flights if flight.scheduled["carrier"] in carriers]
        yield [Write("insert", "flights", flight.scheduled) for flight in flights]
        yield [self._update("flights", flight.scheduled, flight.departed) for flight in self._there(flights)]
        yield [
            self._update("flights", flight.scheduled, flight.arrived)
            for flight in self._there(flights)
            if flight.arrived
        ]

    def _delay(self) -> Story:
        """Change one flight several times in successive transactions, to end as it was."""
        row = self._any("flights")
        before = row["delays"]
        for minutes in sorted(self._random.sample(range(5, 300), self._random.randint(2, 6))):
            yield self._if_there("flights", row, {"delays": {"announced": minutes}})
        yield self._if_there("flights", row, {"delays": before})

    def _withdraw(self) -> Story:
        """Delete a flight and insert it again, twice."""
        row = dict(self._any("flights"))
        key = _key("flights", row)
        for _ in range(2):
            if key not in self.tables["flights"]:
                return
            yield [Write("delete", "flights", _named_key("flights", row))]
            if (row["carrier"],) not in self.tables["airlines"] or key in self.tables["flights"]:
                return
            yield [Write("insert", "flights", row)]

    def _swap_plane(self) -> Story:
        """Change rows of three tables in one transaction."""
        flight, plane, airport = self._any("flights"), self._any("planes"), self._any("airports")
        seats, altitude = plane["seats"], airport["altitude_feet"]
        assert isinstance(seats, int)
        assert isinstance(altitude, int)
        yield [
            *self._if_there("flights", flight, {"tail_number": plane["tail_number"]}),
            self._update("planes", plane, {"seats": seats + self._random.choice((-1, 1))}),
            self._update("airports", airport, {"altitude_feet": altitude + 1}),
        ]
        yield self._if_there("flights", flight, {"tail_number": None})

    def _replace_plane(self) -> Story:
        """Replace a whole row, leaving columns out: they become NULL."""
        plane = dict(self._any("planes"))
        left_out = ("engine", "record_digest")
        yield [Write("replace", "planes", {name: value for name, value in plane.items() if name not in left_out})]
        yield [Write("replace", "planes", plane)]

    def _close_airline(self) -> Story:
        """Delete a small airline, and with it by cascade its flights; then bring all of them back together."""
        sizes = Counter(carrier for carrier, *_ in self.tables["flights"])
        small = [key for key in self.tables["airlines"] if sizes[key[0]] <= _LARGEST_AIRLINE_TO_CLOSE]
        if not small:
            return
        (carrier,) = self._random.choice(sorted(small, key=str))
        airline = dict(self.tables["airlines"][carrier,])
        flights = [dict(row) for row in self.tables["flights"].values() if row["carrier"] == carrier]
        yield [Write("delete", "airlines", {"carrier": carrier})]
        if (carrier,) not in self.tables["airlines"]:
            yield [Write("insert", "airlines", airline), *(Write("insert", "flights", row) for row in flights)]

    def _transaction(self, writes: Sequence[Write]) -> Transaction:
        """Apply writes to the model and count the rows that they change."""
        changes: Counter[str] = Counter()
        for write in writes:
            changes[write.table] += 1
            table, key = self.tables[write.table], _key(write.table, write.row)
            match write.operation:
                case "insert" | "replace":
                    assert write.operation == "replace" or key not in table, f"{key} is there already"
                    table[key] = {**dict.fromkeys(self._columns(write.table)), **write.row}
                case "update":
                    table[key] |= write.row
                case "delete":
                    del table[key]
                    if write.table == "airlines":
                        cascaded = [flight for flight in self.tables["flights"] if flight[0] == key[0]]
                        changes["flights"] += len(cascaded)
                        for flight in cascaded:
                            del self.tables["flights"][flight]
                case "insert_or_update":
                    raise AssertionError("the demo says which it means")
        return Transaction(writes, changes)

    def _columns(self, table: str) -> Sequence[str]:
        whole = {"airlines": self._data.airlines, "airports": self._data.airports, "planes": self._data.planes}
        return list(whole[table][0]) if table in whole else list(self._data.flights[0].scheduled)

    def _any(self, table: str) -> Row:
        return self._random.choice(list(self.tables[table].values()))

    def _there(self, flights: Sequence[Flight]) -> list[Flight]:
        return [flight for flight in flights if _key("flights", flight.scheduled) in self.tables["flights"]]

    def _if_there(self, table: str, row: Row, values: Row) -> list[Write]:
        return [self._update(table, row, values)] if _key(table, row) in self.tables[table] else []

    def _update(self, table: str, row: Row, values: Row) -> Write:
        return Write("update", table, {**_named_key(table, row), **values})


def _key(table: str, row: Row) -> Key:
    return tuple(row[column] for column in KEYS[table])


def _named_key(table: str, row: Row) -> Row:
    return {column: row[column] for column in KEYS[table]}
