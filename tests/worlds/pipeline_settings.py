"""A pipeline of the local platform, as far as the settings of its services define it."""

from deploy.local.platform.services import Pipeline

PIPELINE = Pipeline(
    spanner="127.0.0.1:1",
    pubsub="127.0.0.1:2",
    bigquery_rest="127.0.0.1:3",
    bigquery_grpc="127.0.0.1:4",
    project="p",
    instance="i",
    database="d",
    change_stream="s",
    name="mill-race",
)
