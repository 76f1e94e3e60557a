"""What happens to the flights: those that are not loaded yet are inserted as scheduled, depart and arrive.

Between that, rows are changed several times in successive transactions, deleted and inserted again, replaced, and
changed together with rows of other tables; and an airline is deleted with all its flights and comes back.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Final

from deploy.local.demo.flights import Flight, FlightData
from deploy.local.demo.package_data import batches_of
from deploy.local.demo.schema import FLIGHTS
from deploy.local.demo.workload import Story, Workload
from deploy.local.platform.source import Row, Value, Write

_FLIGHTS_AT_ONCE: Final = 6
_LARGEST_AIRLINE_TO_CLOSE: Final = 40


class FlightsWorkload(Workload):
    """The changes of one run to the flights and what belongs to them."""

    def __init__(self, data: FlightData, loaded: int, seed: int = 2013, before: int = 0) -> None:
        """Begin with so many flights ``before`` the change stream, and all that they need, and load more."""
        others = {"airlines": data.airlines, "airports": data.airports, "planes": data.planes}
        nothing: Mapping[str, Sequence[Row]] = dict.fromkeys(others, ())
        flights = [flight.row for flight in data.flights[: before + loaded]]
        super().__init__(
            FLIGHTS,
            {**(others if before else nothing), "flights": flights[:before]},
            {**(nothing if before else others), "flights": flights[before:]},
            seed,
        )
        self._coming = deque(batches_of(data.flights[before + loaded :], _FLIGHTS_AT_ONCE))
        self._aircraft = {
            plane["tail_number"]: " ".join(str(plane[column]) for column in ("manufacturer", "model"))
            for plane in data.planes
        }

    def _next_story(self) -> Story:
        kinds = [self._delay, self._withdraw, self._swap_plane, self._replace_plane]
        if self._coming and self._random.random() < 0.6:
            return self._fly(self._coming.popleft())
        if self._random.random() < 0.1:
            return self._close_airline()
        return self._random.choice(kinds)()

    def _value_of_added_column(self, row: Row) -> Value:
        return self._aircraft.get(row["tail_number"])

    def _fly(self, flights: Sequence[Flight]) -> Story:
        """Insert flights as scheduled, and update their departures and arrivals as they happened."""
        flights = [one for one in flights if (one.scheduled["carrier"],) in self.tables["airlines"]]
        yield [Write("insert", "flights", self._with_added("flights", flight.scheduled)) for flight in flights]
        yield [write for flight in flights for write in self._if_there("flights", flight.scheduled, flight.departed)]
        yield [
            write
            for flight in flights
            if flight.arrived
            for write in self._if_there("flights", flight.scheduled, flight.arrived)
        ]

    def _delay(self) -> Story:
        """Announce one delay after the other for a flight."""
        minutes = sorted(self._random.sample(range(5, 300), self._random.randint(2, 6)))
        announced = [{"announced": each} for each in minutes]
        return self._change_for_a_while("flights", dict(self._any("flights")), "delays", announced)

    def _withdraw(self) -> Story:
        """Delete a flight and insert it again, twice."""
        return self._delete_and_insert_again("flights", self._any("flights"))

    def _swap_plane(self) -> Story:
        """Change rows of three tables in one transaction."""
        flight, plane, airport = self._any("flights"), self._any("planes"), self._any("airports")
        seats, altitude = plane["seats"], airport["altitude_feet"]
        assert isinstance(seats, int)
        assert isinstance(altitude, int)
        yield [
            *self._if_there("flights", flight, self._with_added("flights", {"tail_number": plane["tail_number"]})),
            self._update("planes", plane, {"seats": seats + self._random.choice((-1, 1))}),
            self._update("airports", airport, {"altitude_feet": altitude + 1}),
        ]
        yield self._if_there("flights", flight, self._with_added("flights", {"tail_number": None}))

    def _replace_plane(self) -> Story:
        """Replace a whole plane, leaving columns out."""
        return self._replace("planes", self._any("planes"), "engine", "record_digest")

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
            back = [Write("insert", "flights", self._with_added("flights", row)) for row in flights]
            yield [Write("insert", "airlines", airline), *back]
