"""What a pipeline's subscription has: change batches, with the times at which Pub/Sub took them."""

from collections.abc import Iterator

from deploy.local.platform.services import AnyPipeline
from shared.contracts.change_batch import ChangeBatch, decode_batch
from shared.pubsub.stubs import AcknowledgeRequest, PullRequest, acknowledge_stub, pull_stub
from tests.benchmarks.pipelines import Platform


def pulled(platform: Platform, pipeline: AnyPipeline) -> Iterator[tuple[int, ChangeBatch]]:
    """Yield each message's publish time in nanoseconds and its change batch, until there are no more."""
    subscription = pipeline.topology.subscription
    pull, acknowledge = pull_stub(platform.channel), acknowledge_stub(platform.channel)
    while received := pull(
        PullRequest(subscription=subscription, max_messages=1000, return_immediately=True), timeout=60
    ).received_messages:
        for one in received:
            yield one.message.publish_time.ToNanoseconds(), decode_batch(one.message.data)
        ids = [one.ack_id for one in received]
        acknowledge(AcknowledgeRequest(subscription=subscription, ack_ids=ids), timeout=60)
