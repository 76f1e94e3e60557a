"""A pause of the whole stream is logged when a reader finds it, and its end; nothing in between."""

from structlog.testing import capture_logs

from shared.reading.stream_pause import StreamPause


def test_the_beginning_and_the_end_of_a_pause_are_logged_once() -> None:
    pause, found = StreamPause(), []
    with capture_logs() as logs:
        for since in (None, "09:00", "09:00", None, None, "10:00"):
            pause.observe(since)
            found.append(pause.paused)
    assert found == [False, True, True, False, False, True]
    assert [(line["event"], line.get("since")) for line in logs] == [
        ("stream_paused", "09:00"),
        ("stream_resumed", None),
        ("stream_paused", "10:00"),
    ]
