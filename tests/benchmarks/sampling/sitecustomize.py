"""Imported by every Python process that has this folder on its path: samples what its threads are doing.

A hundred times a second, each thread's stack is looked at and the CPU time that the thread has used since the last
look is put down to the innermost function that stands for a stage. What native threads use (gRPC, Arrow) is put down
to them by name. The sums are written to ``<pid>.json`` in the folder that MILLRACE_BENCH_SAMPLES names, once a second,
as ``{stage: [CPU seconds, seconds]}``. A forked process starts sums of its own. For benchmarks only.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType

_EVERY = 0.01
_WORTH = 0.002
_WRITE_EVERY = 1.0

# (file, function or "" for any, stage): the first that matches the innermost frame, then the one around it, and so on
_STAGES = (
    ("append_connection.py", "_wait_for", "append: wait for answers"),
    ("append_connection.py", "send", "append: send"),
    ("append_connection.py", "__post_init__", "append: build requests"),
    ("append_connection.py", "_read", "append: answers"),
    ("append_stream.py", "_cut", "append: cut into requests"),
    ("append_stream.py", "append", "append: the rest"),
    ("append_stream.py", "refused", "append: the rest"),
    ("row_encoder.py", "encode", "encode (ptars)"),
    ("columns.py", "conform", "encode (ptars)"),
    ("sequencing.py", "", "newest per key"),
    ("newest.py", "", "newest per key"),
    ("writing.py", "_start", "take the newest rows"),
    ("writing.py", "", "write: the rest"),
    ("parsing.py", "", "parse rows (pyarrow.json)"),
    ("columns.py", "_typed", "cast to wire types"),
    ("columns.py", "_envelopes", "decode envelopes (msgspec)"),
    ("columns.py", "_groups", "decode envelopes (msgspec)"),
    ("columns.py", "", "columns: the rest"),
    ("leases.py", "", "leases: ack, extend"),
    ("micro_batch.py", "", "micro-batch: the rest"),
    ("pulling.py", "_to_messages", "receive: to Arrow"),
    ("pulling.py", "to_portions", "receive: to Arrow"),
    ("pulling.py", "ack_ids", "receive: to Arrow"),
    ("pulling.py", "", "receive: pull"),
    ("message_data.py", "keep", "receive: keep the data"),
    ("message_data.py", "pack", "receive: keep the data"),
    ("message_data.py", "", "sink: read the data"),
    ("pubsub_reader.py", "", "receive: the rest"),
    ("sink_task.py", "", "sink: rows from the JVM"),
    ("rows.py", "rows", "take values of rows"),
    ("rows.py", "", "read rows"),
    ("snapshot.py", "", "make changes"),
    ("snapshot_source.py", "", "snapshot: the rest"),
    ("snapshots.py", "", "snapshot: the rest"),
    ("record_decoder.py", "", "decode records"),
    ("chunks.py", "", "decode records"),
    ("merging.py", "", "decode records"),
    ("change_stream.py", "records_of", "decode records"),
    ("plain_rows.py", "", "rows that are read back"),
    ("row_chunks.py", "", "rows that are read back"),
    ("images.py", "", "make changes"),
    ("entries.py", "", "make changes"),
    ("read_back.py", "", "read back: the rest"),
    ("message_feed.py", "", "take messages of the stream"),
    ("confirmed_prefix.py", "", "confirm"),
    ("changes.py", "", "make changes"),
    ("row_id.py", "", "make changes"),
    ("packer.py", "", "pack"),
    ("change_batch.py", "encode_batch", "encode batches"),
    ("publisher.py", "batch_message", "encode batches"),
    ("publisher.py", "_attributes", "encode batches"),
    ("publisher.py", "", "publish"),
    ("key_rests.py", "", "publish"),
    ("watermark.py", "", "watermark"),
    ("partition_table.py", "", "partition table"),
    ("partition_reader.py", "", "partition reader"),
    ("change_stream.py", "", "read the stream"),
    ("reader.py", "", "reader: the rest"),
    ("health.py", "", "health and metrics"),
    ("exposition.py", "", "health and metrics"),
    ("worker.py", "", "PySpark worker"),
    ("serializers.py", "", "PySpark worker"),
    ("daemon.py", "", "PySpark worker"),
    ("_call.py", "", "gRPC aio"),
    ("selectors.py", "", "event loop"),
    ("base_events.py", "", "event loop"),
)
_BY_FILE: dict[str, list[tuple[str, str]]] = {}
for _file, _function, _stage in _STAGES:
    _BY_FILE.setdefault(_file, []).append((_function, _stage))


def _stage_of(frame: FrameType | None) -> str:
    while frame is not None:
        for function, stage in _BY_FILE.get(frame.f_code.co_filename.rpartition("/")[2], ()):
            if function in ("", frame.f_code.co_name):
                return stage
        frame = frame.f_back
    return "other Python"


def _thread_cpu() -> dict[int, float]:
    found = {}
    for task in os.listdir("/proc/self/task"):  # noqa: PTH208 - the cheap way, for this runs often
        try:
            with open(f"/proc/self/task/{task}/schedstat", "rb") as file:  # noqa: PTH123 - the same
                found[int(task)] = int(file.read().split()[0]) / 1e9
        except (OSError, ValueError):
            continue
    return found


def _stages() -> dict[int, str]:
    """Return what each Python thread is doing, by the thread's id in the kernel."""
    frames = sys._current_frames()
    main = threading.main_thread()
    return {
        # that of the main thread is the process's, and not known to Python after a fork
        os.getpid() if thread is main else thread.native_id or 0: _stage_of(frames.get(thread.ident or 0))
        for thread in threading.enumerate()
    }


def _sample(directory: Path) -> None:
    sums: dict[str, list[float]] = {}
    used, busy = _thread_cpu(), time.process_time()
    sampled = written = time.monotonic()
    own = threading.get_native_id()
    pause = threading.Event()
    while not pause.wait(_EVERY):
        stages = _stages()
        now = time.monotonic()
        for task, stage in stages.items():
            if task != own:
                sums.setdefault(stage, [0.0, 0.0])[1] += now - sampled
        sampled = now
        if time.process_time() - busy > _WORTH:
            cpu = _thread_cpu()
            for task, seconds in cpu.items():
                stage = "the sampling itself" if task == own else stages.get(task, "native threads (gRPC, Arrow)")
                sums.setdefault(stage, [0.0, 0.0])[0] += max(0.0, seconds - used.get(task, 0.0))
            used, busy = cpu, time.process_time()
        if now - written >= _WRITE_EVERY:
            written = now
            part = directory / f"{os.getpid()}.part"
            part.write_text(json.dumps(sums))
            part.rename(part.with_suffix(".json"))


def _start() -> None:
    directory = os.environ.get("MILLRACE_BENCH_SAMPLES")
    if directory:
        threading.Thread(target=_sample, args=(Path(directory),), name="sampling", daemon=True).start()


_start()
os.register_at_fork(after_in_child=_start)
