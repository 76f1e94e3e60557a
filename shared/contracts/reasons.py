"""Why a record can never be applied: a closed list, so that dead letters can be counted, grouped and explained."""

from enum import Enum


class Reason(Enum):
    """The reason of a dead letter. A member's value is what the attribute and the metrics label say."""

    # The message as a whole
    UNDECODABLE = "undecodable"
    """Not a JSON document of the wire format."""
    TRAILING_BYTES = "trailing_bytes"
    """A change batch, and then something more."""
    UNEQUAL_LISTS = "unequal_lists"
    """The lists of a change batch differ in length, so no value can be attributed to a change."""

    # The table or the column list that the header names
    NO_PRIMARY_KEY = "no_primary_key"
    """BigQuery takes upserts and deletes only for a table with a primary key."""
    KEY_NOT_REPRESENTABLE = "key_not_representable"
    """A key column's type or value that no BigQuery key holds without loss: JSON, an array, NULL, nanoseconds."""
    TOO_MANY_COLUMNS = "too_many_columns"
    """More than 16 key columns or more than 2000 columns: BigQuery's limits for tables with change data capture."""
    BAD_NAME = "bad_name"
    """A table or column name that BigQuery does not take."""
    UNSUPPORTED_TYPE = "unsupported_type"
    """What is no name of a column's type: an array of arrays, a STRUCT with fields."""
    SCHEMA_CONFLICT = "schema_conflict"
    """The BigQuery table has another primary key, or a column of another type that can have none beside it."""

    # One change
    BAD_CHANGE = "bad_change"
    """A change that contradicts itself: an upsert without a row, a key that is not an object, an unknown operation."""
    BAD_SEQUENCE = "bad_sequence"
    """Not a change sequence number, or one of a time to come."""
    VALUE_DOES_NOT_FIT = "value_does_not_fit"
    """A value that its column's type cannot hold."""
    TOO_LARGE = "too_large"
    """A change that fits into no message, a row that fits into no append, or one that its source does not hand out."""
    REFUSED_BY_BIGQUERY = "refused_by_bigquery"
    """BigQuery refused the row itself (a row error)."""
    TOO_OLD_TO_BE_SAFE = "too_old_to_be_safe"
    """An upsert that is not from the stream and older than BigQuery remembers deletes: it could bring a row back.

    Rows of a snapshot that are too old are no dead letters: their mirror needs another snapshot, which has them all.
    """
    RETRIES_EXHAUSTED = "retries_exhausted"
    """Failed retryably, every time, for longer than the retry time."""
    NOT_APPLIED_IN_TIME = "not_applied_in_time"
    """Delivered more often than Pub/Sub's own dead-letter policy allows, and forwarded by it."""

    # Nothing that we have found
    UNEXPLAINED = "unexplained"
    """Came to the dead-letter topic from elsewhere, and does not say why."""
