"""Readers: records, ends of files, counts, errors, and waiting for work units."""
import atexit
import gzip
import os
import re
import shutil
import tempfile
import zlib

import tensorflow.compat.v1 as tf

from . import scenario, type_of

FOLDER = tempfile.mkdtemp(prefix="readers-")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def file(name, content):
    path = os.path.join(FOLDER, name)
    with open(path, "wb") as out:
        out.write(content)
    return path


def records(name, values, compression=""):
    path = os.path.join(FOLDER, name)
    with tf.python_io.TFRecordWriter(path, compression) as writer:
        for value in values:
            writer.write(value)
    return path


class Input:
    """A queue of work units, closed or open, and a reader that reads them."""

    def __init__(self, peer, reader, units=(), close=True):
        self.peer, self.reader = peer, reader
        self.queue = tf.FIFOQueue(100, tf.string, shapes=[[]], shared_name=peer.name("q"))
        self.unit = tf.placeholder(tf.string, [])
        self.add = self.queue.enqueue(self.unit)
        self.read = reader.read(self.queue)
        self.counts = [reader.num_records_produced(), reader.num_work_units_completed()]
        self.close = self.queue.close()
        self.units, self.is_closed = units, close

    def start(self, session):
        self.session = session
        for unit in self.units:
            self.put(unit)
        if self.is_closed:
            session.run(self.close)
        return self

    def put(self, unit):
        self.session.run(self.add, {self.unit: unit})

    def record(self, fetches=None, label="read"):
        fetches = self.read if fetches is None else fetches
        self.peer.record(label, lambda: self.outcome(fetches))
        self.peer.record("counts", lambda: self.session.run(self.counts))

    def outcome(self, fetches):
        try:
            return without_place(self.session.run(fetches))
        except tf.errors.DataLossError as error:
            # Our messages end with the file's name.
            return re.search(r"(corrupted|truncated) record at \d+( \(.*\))?", error.message).group()

    def record_all(self, times, fetches=None):
        for _ in range(times):
            self.record(fetches)


def without_place(values):
    return list(values) if isinstance(values, tuple) else values


@scenario
def lines(peer):
    texts = [b"one\ntwo\r\n\nthr\ree\r\r\n", b"", b"\r\nlast without end\r", b"a\nb"]
    paths = [file(f"lines{i}", text) for i, text in enumerate(texts)]
    for skipped in (None, 1, 4):
        with peer.session() as s:
            source = Input(peer, tf.TextLineReader(skip_header_lines=skipped), paths).start(s)
            source.record_all(13)


@scenario
def a_long_line_and_many_short_ones(peer):
    path = file("long", b"x" * 600_000 + b"\r\n" + b"".join(b"%d\n" % i for i in range(70_000)))
    with peer.session() as s:
        source = Input(peer, tf.TextLineReader(), [path]).start(s)
        source.record()
        source.record(source.reader.read_up_to(source.queue, 69_998), "most")
        source.record_all(4)


@scenario
def blocks_of_one_length(peer):
    paths = [file("blocks0", b"Habcdefghijklmnopq"), file("blocks1", b"H"), file("blocks2", b"H1234567890T")]
    for header, record, footer, hop in ((0, 3, 0, 0), (1, 4, 1, 0), (1, 4, 1, 2), (1, 4, 1, 5), (1, 4, 1, 7), (0, 30, 0, 0), (1, 3, 0, 100), (2, 1, 10, 1)):
        with peer.session() as s:
            reader = tf.FixedLengthRecordReader(record, header_bytes=header, footer_bytes=footer, hop_bytes=hop)
            Input(peer, reader, paths).start(s).record_all(12)


@scenario
def compressed_blocks(peer):
    plain = b"Habcdefghijklmnopq"
    packed = {"ZLIB": file("blocks.z", zlib.compress(plain)), "GZIP": file("blocks.gz", gzip.compress(plain))}
    for encoding, path in packed.items():
        for hop in (0, 1, 6):
            with peer.session() as s:
                reader = tf.FixedLengthRecordReader(4, header_bytes=1, footer_bytes=1, hop_bytes=hop, encoding=encoding)
                Input(peer, reader, [path]).start(s).record_all(9)


@scenario
def files_shorter_than_their_header(peer):
    paths = [file("short0", b"ab"), file("short1", b"header1234"), file("short2", b"")]
    with peer.session() as s:
        Input(peer, tf.FixedLengthRecordReader(2, header_bytes=6), paths).start(s).record_all(6)


@scenario
def records_of_files(peer):
    for compression in ("", "ZLIB", "GZIP"):
        options = tf.python_io.TFRecordOptions(getattr(tf.python_io.TFRecordCompressionType, compression or "NONE"))
        values = [[b"one", b"", b"three" * 1000], [], [b"four"]]
        paths = [records(f"records{i}{compression}", v, compression) for i, v in enumerate(values)]
        with peer.session() as s:
            Input(peer, tf.TFRecordReader(options=options), paths).start(s).record_all(6)


@scenario
def damaged_records(peer):
    good = open(records("good", [b"first", b"second", b"third"]), "rb").read()
    damaged = file("damaged", good[:25] + b"\xff" + good[26:])
    rubbish = file("rubbish", b"this is no file of records at all")
    after = records("after", [b"after"])
    with peer.session() as s:
        source = Input(peer, tf.TFRecordReader(), [damaged, rubbish, after]).start(s)
        # The error repeats until the reader is reset.
        source.record_all(3)
        s.run(source.reader.reset())
        source.record_all(2)
        s.run(source.reader.reset())
        source.record_all(2)
    with peer.session() as s:
        source = Input(peer, tf.TFRecordReader(), [damaged, after]).start(s)
        source.record(source.reader.read_up_to(source.queue, 3))
        s.run(source.reader.reset())
        source.record(source.reader.read_up_to(source.queue, 3))


@scenario
def truncated_records(peer):
    whole = open(records("uncut", [b"first", b"second", b"third"]), "rb").read()
    for length in (0, 7, 12, 15, 19, 30, 35, 39, len(whole) - 1):
        with peer.session() as s:
            source = Input(peer, tf.TFRecordReader(), [file(f"cut{length}", whole[:length]), records("next", [b"next"])]).start(s)
            source.record_all(4)


@scenario
def whole_files(peer):
    paths = [file("whole0", b"all\0of it\n"), file("whole1", b""), file("whole2", b"x" * 300_000)]
    with peer.session() as s:
        Input(peer, tf.WholeFileReader(), paths).start(s).record_all(4)


@scenario
def work_units_themselves(peer):
    with peer.session() as s:
        Input(peer, tf.IdentityReader(), ["a", "", "b/c"]).start(s).record_all(4)


@scenario
def missing_files(peer):
    there, missing = file("there", b"line\n"), os.path.join(FOLDER, "missing")
    for make in (tf.TextLineReader, tf.TFRecordReader, lambda: tf.FixedLengthRecordReader(2)):
        with peer.session() as s:
            source = Input(peer, make(), [missing, missing, there if make is tf.TextLineReader else missing]).start(s)
            source.record_all(5)
    with peer.session() as s:
        # WholeFileReader retries a missing file, and reads it once it exists.
        source = Input(peer, tf.WholeFileReader(), [missing, there]).start(s)
        source.record_all(2)
        source.record(source.reader.serialize_state())
        file("missing", b"here")
        source.record_all(3)
        os.remove(missing)


@scenario
def several_records_at_once(peer):
    text = [file(f"several{i}", b"".join(b"%d-%d\n" % (i, j) for j in range(7))) for i in range(3)]
    tf_records = [records(f"many{i}", [b"%d-%d" % (i, j) for j in range(7)]) for i in range(2)]
    blocks = [file(f"blocks-{i}", b"abcdefg") for i in range(2)]
    for make, paths in (
        (tf.TextLineReader, text),
        (tf.TFRecordReader, tf_records),
        (lambda: tf.FixedLengthRecordReader(1), blocks),
        (tf.WholeFileReader, text),
        (tf.IdentityReader, text),
    ):
        with peer.session() as s:
            source = Input(peer, make(), paths).start(s)
            count = tf.placeholder(tf.int64, [])
            some = source.reader.read_up_to(source.queue, count)
            for limit in (0, 3, 1, 3, 2, 100, 4, 4, 4, 4, 0):
                peer.record(f"up to {limit}", lambda: without_place(s.run(some, {count: limit})))
                peer.record("counts", s.run(source.counts))
            source.record()


@scenario
def readers_restore_a_state(peer):
    for make in (tf.IdentityReader, tf.WholeFileReader):
        with peer.session() as s:
            paths = [file(f"state{i}", b"content %d" % i) for i in range(4)]
            source = Input(peer, make(), paths).start(s)
            reader = source.reader
            state = tf.placeholder(tf.string, [])
            restore = reader.restore_state(state)
            source.record(reader.serialize_state())
            source.record()
            first = s.run(reader.serialize_state())
            source.record()
            source.record(reader.serialize_state())
            s.run(restore, {state: first})
            source.record()
            s.run(reader.reset())
            source.record(reader.serialize_state())
            source.record()
            for unreadable in (b"\xff\"'\n", b"junk"):
                peer.record("restore", lambda: s.run(restore, {state: unreadable}))
            for wrong in (b"\x08\x02\x10\x01", b"\x08\x02\x10\x01\x22\x01x", b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x08\x05\x10\x05\x18\x09"):
                # Compares only the class, because TensorFlow's message describes the state in its own format.
                peer.record("restore", lambda: type_of(lambda: s.run(restore, {state: wrong})))
                peer.record("counts", s.run(source.counts))
            source.record()
            several = tf.raw_ops.ReaderRestoreStateV2(reader_handle=reader.reader_ref, state=tf.placeholder_with_default(["a", "b"], None))
            peer.record("restore several", lambda: s.run(several))


@scenario
def most_readers_have_no_state(peer):
    for make in (tf.TextLineReader, tf.TFRecordReader, lambda: tf.FixedLengthRecordReader(2)):
        with peer.session() as s:
            reader = make()
            peer.record("serialize", lambda: s.run(reader.serialize_state()))
            peer.record("restore", lambda: s.run(reader.restore_state(b"")))


@scenario
def reset_starts_with_the_next_file(peer):
    paths = [file(f"reset{i}", b"%d-0\n%d-1\n" % (i, i)) for i in range(3)]
    with peer.session() as s:
        source = Input(peer, tf.TextLineReader(), paths).start(s)
        source.record_all(3)
        s.run(source.reader.reset())
        source.record_all(4)


@scenario
def queues_of_wrong_types(peer):
    raw = tf.raw_ops
    reader = tf.IdentityReader(name=peer.name("reader"))
    two = tf.FIFOQueue(9, [tf.string, tf.string], shared_name=peer.name("q"))
    numbers = tf.FIFOQueue(9, [tf.int32], shared_name=peer.name("q"))
    vectors = tf.FIFOQueue(9, [tf.string], shared_name=peer.name("q"))
    with peer.session() as s:
        s.run([two.enqueue(("a", "b")), numbers.enqueue(1)])
        s.run(vectors.enqueue([["c", "d"]]))
        s.run(vectors.enqueue([["e"]]))
        for queue in (two, numbers, vectors, vectors):
            peer.record("read", lambda: list(s.run(raw.ReaderReadV2(reader_handle=reader.reader_ref, queue_handle=queue.queue_ref))))
            peer.record("size", s.run(queue.size()))


@scenario
def wrong_attributes(peer):
    raw = tf.raw_ops
    makes = [
        lambda: raw.TextLineReaderV2(skip_header_lines=-1),
        lambda: raw.FixedLengthRecordReaderV2(record_bytes=-1),
        lambda: raw.FixedLengthRecordReaderV2(record_bytes=1, header_bytes=-2),
        lambda: raw.FixedLengthRecordReaderV2(record_bytes=1, footer_bytes=-3),
        lambda: raw.FixedLengthRecordReaderV2(record_bytes=1, hop_bytes=-4),
    ]
    for make in makes:
        with tf.Graph().as_default():
            count = raw.ReaderNumRecordsProducedV2(reader_handle=make())
            with peer.session() as s:
                peer.record("made", lambda: s.run(count))


@scenario
def readers_behind_references(peer):
    path = file("old", b"ab\ncd\nef\n")
    # Without FixedLengthRecordReader, whose kernel in TensorFlow needs an attribute that the op lacks.
    for op in ("TextLineReader", "WholeFileReader", "IdentityReader", "TFRecordReader"):
        old = OldGraph()
        old.add("queue", "FIFOQueue", component_types=[tf.string], shared_name=peer.name("q"))
        old.add("reader", op, shared_name=peer.name("r"))
        old.add("unit", "Placeholder", dtype=tf.string)
        old.add("enqueue", "QueueEnqueue", "queue", "unit", Tcomponents=[tf.string])
        old.add("close", "QueueClose", "queue")
        old.add("read", "ReaderRead", "reader", "queue")
        old.add("some", "ReaderReadUpTo", "reader", "queue", "count")
        old.add("count", "Placeholder", dtype=tf.int64)
        old.add("produced", "ReaderNumRecordsProduced", "reader")
        old.add("completed", "ReaderNumWorkUnitsCompleted", "reader")
        old.add("state", "ReaderSerializeState", "reader")
        old.add("restore", "ReaderRestoreState", "reader", "unit")
        old.add("reset", "ReaderReset", "reader")
        with tf.Graph().as_default(), peer.session() as s:
            tf.import_graph_def(old.graph, name="")
            for _ in range(2):
                s.run("enqueue", {"unit:0": path})
            s.run("close")
            for fetch in ("read", "some", "counts", "state", "read", "some", "counts", "read"):
                names = {"read": ["read:0", "read:1"], "some": ["some:0", "some:1"], "counts": ["produced:0", "completed:0"]}.get(fetch, f"{fetch}:0")
                peer.record(fetch, lambda: s.run(names, {"count:0": 5}))
            peer.record("restored", lambda: s.run("restore", {"unit:0": b"\x08\x02\x10\x02"}))
            peer.record("counts", s.run(["produced:0", "completed:0"]))
            peer.record("reset", lambda: s.run("reset"))
            peer.record("counts", s.run(["produced:0", "completed:0"]))


class OldGraph:
    """A graph of an old version, in which handles are references to strings."""

    def __init__(self):
        self.graph = tf.GraphDef()
        self.graph.versions.producer = 21

    def add(self, name, op, *inputs, **attrs):
        node = self.graph.node.add(name=name, op=op, input=inputs)
        for key, value in attrs.items():
            if isinstance(value, list):
                node.attr[key].list.type.extend(t.as_datatype_enum for t in value)
            elif isinstance(value, tf.DType):
                node.attr[key].type = value.as_datatype_enum
            elif isinstance(value, int):
                node.attr[key].i = value
            else:
                node.attr[key].s = value.encode()


@scenario
def a_read_waits_for_work(peer):
    path = file("waits", b"1\n2\n")
    with peer.session() as s:
        source = Input(peer, tf.TextLineReader(), close=False).start(s)
        waits = peer.background(lambda: without_place(s.run(source.read)))
        source.put(path)
        peer.record("read", waits.join())
        source.record()
        waits = peer.background(lambda: without_place(s.run(source.read)))
        s.run(source.close)
        peer.record("closed", waits.join())
        source.record()


@scenario
def waiting_read_blocks_others_until_it_is_cancelled(peer):
    path = file("held", b"1\n2\n")
    with peer.session() as s:
        source = Input(peer, tf.TextLineReader(), close=False).start(s)
        options = tf.RunOptions(timeout_in_ms=2000)
        peer.record("read", lambda: type_of(lambda: s.run(source.read, options=options)))
        source.put(path)
        source.record_all(2)


@scenario
def a_shared_reader(peer):
    raw = tf.raw_ops
    path = file("shared", b"1\n2\n3\n")
    name = peer.name("r")
    queue = tf.FIFOQueue(9, [tf.string], shapes=[[]], shared_name=peer.name("q"))
    readers = [raw.TextLineReaderV2(shared_name=name), raw.TextLineReaderV2(shared_name=name), raw.TextLineReaderV2()]
    with peer.session() as s:
        s.run(queue.enqueue(path))
        s.run(queue.close())
        for i in (0, 1, 2, 0, 1):
            peer.record("read", lambda: without_place(s.run(raw.ReaderReadV2(reader_handle=readers[i], queue_handle=queue.queue_ref))))
    with peer.session() as s:
        peer.record("count", s.run([raw.ReaderNumRecordsProducedV2(reader_handle=reader) for reader in readers]))


@scenario
def lines_by_queue_runners(peer):
    paths = [file(f"run{i}", b"number,half\n" + b"".join(b"%d,%f\n" % (j, j / 2) for j in range(10 * i, 10 * i + 10))) for i in range(3)]
    names = tf.train.string_input_producer(paths, num_epochs=2, shuffle=False)
    reader = tf.TextLineReader(skip_header_lines=1)
    key, line = reader.read(names)
    number, half = tf.decode_csv(line, [[0], [0.0]])
    batch = tf.train.batch([key, number, half], batch_size=7, num_threads=1, allow_smaller_final_batch=True)
    with peer.session() as s:
        s.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(s, coordinator)
        for _ in range(9):
            peer.record("batch", lambda: s.run(batch))
        peer.record("end", lambda: type_of(lambda: s.run(batch)))
        coordinator.request_stop()
        coordinator.join(threads)
        peer.record("counts", s.run([reader.num_records_produced(), reader.num_work_units_completed()]))


@scenario
def several_threads_share_a_reader(peer):
    paths = [records(f"threads{i}", [b"%d-%d" % (i, j) for j in range(50)]) for i in range(4)]
    names = tf.train.string_input_producer(paths, num_epochs=1, shuffle=True, seed=3)
    reader = tf.TFRecordReader()
    keys, values = reader.read_up_to(names, 8)
    batch = tf.train.shuffle_batch([keys, values], 16, 200, 32, num_threads=3, enqueue_many=True, allow_smaller_final_batch=True)
    seen = []
    with peer.session() as s:
        s.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(s, coordinator)
        try:
            while not coordinator.should_stop():
                seen += zip(*[v.tolist() for v in s.run(batch)])
        except tf.errors.OutOfRangeError:
            coordinator.request_stop()
        coordinator.join(threads)
    peer.record("all", sorted(seen))
