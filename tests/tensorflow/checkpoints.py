"""Checkpoints and summaries written with TensorFlow's Saver and sessions: each implementation reads the files of the
other, and the bytes are the same. Runs on a cluster of two ps and one worker of ours."""
import argparse
import filecmp
import glob
import os
import re
import shutil
import sqlite3
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

from synchronisation import text

parser = argparse.ArgumentParser()
parser.add_argument("--target", required=True)
TARGET = parser.parse_args().target
FOLDER = tempfile.mkdtemp()

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)


def path(*parts):
    return os.path.join(FOLDER, *parts)


def passed(name):
    print("ok", name, flush=True)


def run(target, build):
    """Runs the fetches that `build` returns and returns their values; the empty target is TensorFlow's own runtime."""
    with tf.Graph().as_default():
        fetches = build()
        with tf.Session(target) as session:
            return session.run(fetches)


TYPES = "float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 complex128".split()


def everything():
    """Returns tensors of every type and of unusual shapes, and slices of two partitioned tensors."""
    rng = np.random.default_rng(1)
    named = [(f"of/{t}", "", (rng.integers(0, 2, (3, 4)) * 3).astype(tf.as_dtype(t).as_numpy_dtype)) for t in TYPES]
    named += [
        ("scalar", "", np.float32(3)),
        ("empty", "", np.zeros((0, 5), np.int32)),
        ("text", "", np.array([b"", b"a\0b", b"x" * 5000, "é".encode()], object).reshape(2, 2)),
        ("no text", "", np.zeros((0,), object)),
        ("cut", "6 3 0,2:-", np.arange(6, dtype=np.float32).reshape(2, 3)),
        ("cut", "6 3 2,4:-", np.arange(6, 18, dtype=np.float32).reshape(4, 3)),
        ("columns", "2 300 -:0,100", rng.normal(size=(2, 100))),
        ("columns", "2 300 -:100,200", rng.normal(size=(2, 200))),
        ("whole", "2 3 0,2:0,3", np.ones((2, 3), np.int64)),
    ]
    return named


def save_everything(prefix):
    def build():
        names, parts, values = zip(*everything())
        tensors = [tf.constant(v, tf.string if v.dtype == object else v.dtype) for v in values]
        return tf.raw_ops.SaveV2(prefix=prefix, tensor_names=list(names), shape_and_slices=list(parts), tensors=tensors)

    return build


def same_files(ours, theirs):
    names = [sorted(os.path.basename(f) for f in glob.glob(f"{p}*")) for p in (ours, theirs)]
    assert names[0] == names[1] and names[0], names
    for name in names[0]:
        assert filecmp.cmp(os.path.join(os.path.dirname(ours), name), os.path.join(os.path.dirname(theirs), name), shallow=False), name


def bytes_are_the_same():
    for side, target in (("ours", TARGET), ("theirs", "")):
        os.makedirs(path(side), exist_ok=True)
        run(target, save_everything(path(side, "all")))
    same_files(path("ours", "all"), path("theirs", "all"))
    reader = tf.train.load_checkpoint(path("ours", "all"))
    shapes = reader.get_variable_to_shape_map()
    assert shapes["cut"] == [6, 3] and shapes["scalar"] == [], shapes
    assert (reader.get_tensor("cut") == np.arange(18).reshape(6, 3)).all()
    assert (reader.get_tensor("text") == everything()[-7][2]).all()
    passed("files are the same, and TensorFlow reads ours")


def restored_in_other_parts():
    names = ["cut", "cut", "cut", "columns", "text", "of/bfloat16"]
    parts = ["", "6 3 1,3:-", "6 3 -:1,1", "2 300 1,1:50,200", "", ""]
    types = [tf.float32] * 3 + [tf.float64, tf.string, tf.bfloat16]
    build = lambda: tf.raw_ops.RestoreV2(prefix=path("theirs", "all"), tensor_names=names, shape_and_slices=parts, dtypes=types)
    for ours, theirs in zip(run(TARGET, build), run("", build), strict=True):
        assert ours.dtype == theirs.dtype and (ours == theirs).all()
    passed("parts of TensorFlow's files are read")


def many_names():
    """A checkpoint whose index has several blocks."""
    names = [f"layer{i:05}/kernel" for i in range(9000)]
    for side, target in (("ours", TARGET), ("theirs", "")):
        build = lambda: tf.raw_ops.SaveV2(
            prefix=path(side, "many"), tensor_names=names, shape_and_slices=[""] * len(names), tensors=[tf.constant(1.0)] * len(names)
        )
        run(target, build)
    same_files(path("ours", "many"), path("theirs", "many"))
    passed("an index of several blocks")


def first_format():
    values = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "i": np.int64(-7), "s": np.array([b"a", b""], object)}
    for side, target in (("ours", TARGET), ("theirs", "")):
        build = lambda: tf.raw_ops.Save(filename=path(side, "old"), tensor_names=list(values), data=[tf.constant(v) for v in values.values()])
        run(target, build)
    same_files(path("ours", "old"), path("theirs", "old"))
    build = lambda: tf.raw_ops.RestoreV2(prefix=path("theirs", "old"), tensor_names=["i"], shape_and_slices=[""], dtypes=[tf.int64])
    assert run(TARGET, build)[0] == -7
    passed("checkpoints of the first format")


def model(partitions):
    """Builds a partitioned variable, a string variable and a global step, distributed over the ps tasks."""
    rows = tf.reshape(tf.range(24, dtype=tf.float32), [8, 3])
    # Variables outlive sessions, so each partitioning has its own container.
    with tf.container(f"layout{partitions}"), tf.device(tf.train.replica_device_setter(ps_tasks=2)):
        split = tf.get_variable("split", [8, 3], partitioner=tf.fixed_size_partitioner(partitions), use_resource=False)
        step = tf.train.get_or_create_global_step()
        text = tf.get_variable("text", initializer=tf.constant([b"a", b"b"]), use_resource=False)
    parts = list(split)
    sizes = [int(p.shape[0]) for p in parts]
    fill = tf.group(*[tf.assign(p, v) for p, v in zip(parts, tf.split(rows, sizes))])
    return split, step, text, fill


def savers(sharded):
    folder = path(f"saver{int(sharded)}")
    os.makedirs(folder)
    prefix = os.path.join(folder, "model")
    with tf.Graph().as_default():
        split, step, text, fill = model(2)
        saver = tf.train.Saver(sharded=sharded, max_to_keep=2)
        with tf.Session(TARGET) as session:
            session.run(tf.global_variables_initializer())
            session.run(fill)
            for i in range(4):
                session.run(tf.assign(step, i))
                saved_path = saver.save(session, prefix, global_step=i)
            assert saved_path == f"{prefix}-3", saved_path
    kept = sorted(os.path.basename(f) for f in glob.glob(f"{prefix}-*.index"))
    assert kept == ["model-2.index", "model-3.index"], kept
    assert tf.train.latest_checkpoint(folder) == f"{prefix}-3"
    reader = tf.train.load_checkpoint(folder)
    assert (reader.get_tensor("split") == np.arange(24).reshape(8, 3)).all()
    with tf.Graph().as_default():
        split, step, text, _ = model(3)
        with tf.Session(TARGET) as session:
            tf.train.Saver(sharded=sharded).restore(session, f"{prefix}-3")
            got = session.run([tf.convert_to_tensor(split), step, text])
    assert (got[0] == np.arange(24).reshape(8, 3)).all() and got[1] == 3 and list(got[2]) == [b"a", b"b"], got
    with tf.Graph().as_default():
        missing = tf.get_variable("missing", [2], use_resource=False)
        with tf.Session(TARGET) as session:
            try:
                tf.train.Saver([missing]).restore(session, f"{prefix}-3")
                raise AssertionError("restored a variable that was not saved")
            except tf.errors.NotFoundError as error:
                assert "Key missing not found in checkpoint" in str(error), error
    passed("a saver" + (" in shards" if sharded else ""))


def from_another_server():
    """Restores a checkpoint of a TensorFlow server on our server, and vice versa."""
    server = tf.train.Server.create_local_server()
    for source, sink in ((server.target, TARGET), (TARGET, server.target)):
        prefix = path(f"from_{sink == TARGET}")
        with tf.Graph().as_default():
            w = tf.get_variable("w", initializer=np.arange(6, dtype=np.float32), use_resource=False)
            r = tf.get_variable("r", initializer=np.arange(4, dtype=np.int64), use_resource=True)
            saver = tf.train.Saver()
            with tf.Session(source) as session:
                session.run(tf.global_variables_initializer())
                saver.save(session, prefix)
            with tf.Session(sink) as session:
                session.run([tf.assign(w, tf.zeros_like(w)), tf.assign(r, tf.zeros([4], tf.int64))])
                saver.restore(session, prefix)
                got = session.run([w, r])
        assert (got[0] == np.arange(6)).all() and (got[1] == np.arange(4)).all(), got
    passed("checkpoints between servers")


def summaries_are_the_same():
    rng = np.random.default_rng(2)
    image = rng.normal(size=(2, 4, 5, 3)).astype(np.float32)

    def build():
        values = tf.constant(np.linspace(-3, 3, 100, dtype=np.float32))
        parts = [
            tf.summary.scalar("loss", tf.constant(0.25)),
            tf.summary.histogram("weights", values),
            tf.summary.image("picture", tf.constant(image)),
            tf.summary.audio("sound", tf.constant(np.sin(np.arange(80.0)).reshape(1, 80, 1).astype(np.float32)), 8000),
            tf.summary.text("note", tf.constant(["a", "b"])),
            tf.summary.tensor_summary("tensor", tf.constant([1, 2])),
        ]
        return tf.summary.merge(parts)

    ours, theirs = (tf.Summary.FromString(run(target, build)) for target in (TARGET, ""))
    for mine, other in zip(ours.value, theirs.value, strict=True):
        if mine.HasField("image"):
            decode = lambda s: run("", lambda: tf.image.decode_png(s.image.encoded_image_string))
            assert (decode(mine) == decode(other)).all()
            mine.image.encoded_image_string = other.image.encoded_image_string
        assert mine == other, (mine, other)
    passed("summaries are the same")


def events_of(folder):
    """Returns host, suffix and events of the only event file in a folder, without the times."""
    (name,) = glob.glob(f"{folder}/*")
    host, suffix = re.fullmatch(r"events\.out\.tfevents\.\d{10}\.(.+)\.\d+\.\d+\.(own\.suffix|v2)", os.path.basename(name)).groups()
    events = list(tf.train.summary_iterator(name))
    for event in events:
        assert event.wall_time > 1e9
        event.ClearField("wall_time")
    return host, suffix, events


def write_events(target, folder):
    """Writes every kind of event. Returns the results of the ops, the number of events in the file after each op, and
    the events."""
    raw, counts = tf.raw_ops, []
    rng = np.random.default_rng(7)
    graph = tf.Graph()
    with graph.as_default(), tf.Session(target) as session:
        writer = raw.SummaryWriter(shared_name=f"writer-{folder}")
        create = raw.CreateSummaryFileWriter(writer=writer, logdir=f"{folder}/made/for/it", max_queue=3, flush_millis=10**6, filename_suffix=".own.suffix")
        step = tf.placeholder_with_default(tf.constant(5, tf.int64), [])
        picture = rng.uniform(size=(2, 3, 4, 3)).astype(np.float32)
        sound = np.sin(np.arange(80.0)).reshape(1, 80, 1).astype(np.float32)
        metadata = tf.SummaryMetadata(display_name="name", plugin_data=tf.SummaryMetadata.PluginData(plugin_name="p"))
        summaries = [tf.Summary(value=[tf.Summary.Value(tag=t, simple_value=2.0)]).SerializeToString() for t in "ab"]
        event = tf.Event(wall_time=2e9, step=9, log_message=tf.LogMessage(message="said"))
        writes = [
            raw.WriteScalarSummary(writer=writer, step=step, tag="scalar", value=tf.constant(1.5)),
            raw.WriteScalarSummary(writer=writer, step=step, tag="integer", value=tf.constant(-7, tf.int64)),
            raw.WriteHistogramSummary(writer=writer, step=step, tag="histogram", values=tf.constant(np.linspace(-3, 3, 50))),
            raw.WriteHistogramSummary(writer=writer, step=step, tag="of bool", values=tf.constant([True, False, True])),
            raw.WriteImageSummary(writer=writer, step=step, tag="image", tensor=picture, bad_color=tf.constant([255, 0, 0, 255], tf.uint8)),
            raw.WriteImageSummary(writer=writer, step=step, tag="one", tensor=picture, bad_color=tf.constant([255, 0, 0, 255], tf.uint8), max_images=1),
            raw.WriteAudioSummary(writer=writer, step=step, tag="audio", tensor=sound, sample_rate=8000.0),
            raw.WriteSummary(writer=writer, step=step, tensor=tf.constant([[1, 2]]), tag="tensor", summary_metadata=metadata.SerializeToString()),
            raw.WriteSummary(writer=writer, step=step, tensor=tf.constant(["x", "y"]), tag="text", summary_metadata=""),
            raw.WriteRawProtoSummary(writer=writer, step=step, tensor=tf.constant(summaries)),
            raw.WriteRawProtoSummary(writer=writer, step=step, tensor=tf.constant(summaries[0])),
            raw.WriteGraphSummary(writer=writer, step=step, tensor=graph.as_graph_def().SerializeToString()),
            raw.ImportEvent(writer=writer, event=event.SerializeToString()),
        ]
        wrong = [
            raw.WriteScalarSummary(writer=writer, step=step, tag="scalar", value=tf.constant([1.5, 2.5])),
            raw.WriteHistogramSummary(writer=writer, step=step, tag="nan", values=tf.constant([np.nan])),
            raw.WriteHistogramSummary(writer=writer, step=step, tag="inf", values=tf.constant([np.inf])),
            raw.WriteImageSummary(writer=writer, step=step, tag="image", tensor=picture[0], bad_color=tf.constant([255, 0, 0, 255], tf.uint8)),
            raw.WriteAudioSummary(writer=writer, step=step, tag="audio", tensor=sound, sample_rate=-1.0),
            raw.WriteRawProtoSummary(writer=writer, step=step, tensor=tf.constant([summaries[0], b"\xff"])),
            raw.WriteGraphSummary(writer=writer, step=step, tensor=b"\xff"),
            raw.ImportEvent(writer=writer, event=b"\xff"),
        ]
        flush, close = raw.FlushSummaryWriter(writer=writer), raw.CloseSummaryWriter(writer=writer)
        results = []

        def run_and_record(op):
            try:
                results.append(session.run(op))
            except tf.errors.OpError as error:
                # The message of NotFoundError names the resource, whose name differs between implementations.
                results.append((type(error).__name__, "" if isinstance(error, tf.errors.NotFoundError) else text(error)))
            found = glob.glob(f"{folder}/made/for/it/*")
            counts.append(len(list(tf.train.summary_iterator(found[0]))) if found else -1)

        for op in [writes[0], flush, close, create, create, *writes, *wrong, flush, close, close, writes[0]]:
            run_and_record(op)
    return results, counts, events_of(f"{folder}/made/for/it")


def write_database(target, file):
    """Writes every kind of summary to a database, some of them twice. Returns the results of the ops."""
    raw, results = tf.raw_ops, []
    rng = np.random.default_rng(8)
    graph = tf.Graph()
    with graph.as_default(), tf.Session(target) as session:
        names = {n: tf.placeholder_with_default(n, []) for n in ("of a user", "of an experiment", "")}
        step = tf.placeholder_with_default(tf.constant(5, tf.int64), [])
        picture = rng.uniform(size=(2, 3, 4, 3)).astype(np.float32)
        sound = np.sin(np.arange(80.0)).reshape(1, 80, 1).astype(np.float32)
        metadata = tf.SummaryMetadata(display_name="name", summary_description="text", plugin_data=tf.SummaryMetadata.PluginData(plugin_name="p", content=b"q"))
        values = [tf.Summary.Value(tag="a", simple_value=2.0), tf.Summary.Value(tag="b", tensor=tf.make_tensor_proto([1, 2]), metadata=metadata)]
        event = tf.Event(wall_time=2e9, step=9, summary=tf.Summary(value=values))
        early = tf.Event(wall_time=3, step=1, summary=tf.Summary(value=values[:1]))
        nodes = tf.GraphDef()
        nodes.node.add(name="x", op="Placeholder", device="/cpu:0").attr["dtype"].type = 1
        nodes.node.add(name="y", op="Split", input=["x", "^x"])
        nodes.node.add(name="z", op="Add", input=["y:1", "x:0", "^y"])
        nodes.versions.producer = 27
        for user, experiment, run_name in (("of a user", "of an experiment", "first"), ("of a user", "of an experiment", "second"), ("", "", "third"), ("", "", "")):
            writer = raw.SummaryWriter(shared_name=f"writer-{file}-{run_name}")
            create = raw.CreateSummaryDbWriter(writer=writer, db_uri=file, experiment_name=names[experiment], run_name=run_name, user_name=names[user])
            writes = [
                raw.WriteScalarSummary(writer=writer, step=step, tag="scalar", value=tf.constant(1.5)),
                raw.WriteScalarSummary(writer=writer, step=step, tag="scalar", value=tf.constant(2.5)),
                raw.WriteScalarSummary(writer=writer, step=step, tag="integer", value=tf.constant(-7, tf.int64)),
                raw.WriteScalarSummary(writer=writer, step=step, tag="wrong", value=tf.constant(1, tf.bfloat16)),
                raw.WriteHistogramSummary(writer=writer, step=step, tag="histogram", values=tf.constant(np.linspace(-3, 3, 50))),
                raw.WriteImageSummary(writer=writer, step=step, tag="image", tensor=picture, bad_color=tf.constant([255, 0, 0, 255], tf.uint8)),
                raw.WriteAudioSummary(writer=writer, step=step, tag="audio", tensor=sound, sample_rate=8000.0),
                raw.WriteSummary(writer=writer, step=step, tensor=tf.constant([[1, 2]]), tag="tensor", summary_metadata=metadata.SerializeToString()),
                raw.WriteSummary(writer=writer, step=step, tensor=tf.constant([["x", "y"]]), tag="texts", summary_metadata=""),
                raw.WriteSummary(writer=writer, step=step, tensor=tf.constant("x"), tag="text", summary_metadata=""),
                raw.WriteSummary(writer=writer, step=step, tensor=tf.constant(True), tag="wrong", summary_metadata=""),
                raw.WriteGraphSummary(writer=writer, step=step, tensor=nodes.SerializeToString()),
                raw.ImportEvent(writer=writer, event=event.SerializeToString()),
                raw.ImportEvent(writer=writer, event=early.SerializeToString()),
            ]
            for op in [writes[0], create, create, *writes, raw.FlushSummaryWriter(writer=writer), raw.CloseSummaryWriter(writer=writer)]:
                try:
                    results.append(session.run(op))
                except tf.errors.OpError as error:
                    results.append(type(error).__name__)
    return results


TABLES = "Users Experiments Runs Tags Tensors TensorStrings Graphs Nodes NodeInputs Descriptions".split()


def rows_of(file):
    """Returns the schema of a database of summaries, and its rows. Ids are replaced by the names that they stand for, and
    times by whether they are set; rows that the peer reserves for tensors are left out."""
    with sqlite3.connect(file) as database:
        schema = sorted(database.execute("select type, name, tbl_name from sqlite_master").fetchall())
        columns = {t: [row[1:4] for row in database.execute(f"pragma table_info({t})")] for t in TABLES}
        indices = sorted((t, row[1], row[2], row[4], [c[2] for c in database.execute(f"pragma index_info({row[1]})")]) for t in TABLES for row in database.execute(f"pragma index_list({t})"))
        rows = {t: [dict(zip([c[0] for c in columns[t]], row)) for row in database.execute(f"select * from {t}")] for t in TABLES}
        ids = {row[0] for row in database.execute("select id from Ids")}
    database.close()
    assert 0 not in ids and all(0 < i < 2**47 for i in ids)
    named = {row[f"{kind}_id"]: (kind, row[f"{kind}_name"]) for kind in ("user", "experiment", "run") for row in rows[f"{kind.title()}s"]}
    named |= {row["tag_id"]: ("tag", named.get(row["run_id"]), row["tag_name"]) for row in rows["Tags"]}
    named |= {row["graph_id"]: ("graph", named.get(row["run_id"])) for row in rows["Graphs"]}
    assert set(named) <= ids
    rows["Tensors"] = [row for row in rows["Tensors"] if row["dtype"] is not None]
    written = {row["rowid"]: (named[row["series"]], row["step"]) for row in rows["Tensors"]}
    rows["TensorStrings"] = [row for row in rows["TensorStrings"] if row["tensor_rowid"] in written]

    def plain(table, column, value):
        if column.endswith("_time"):
            return value if value in (3.0, 2e9) else value is not None and value > 1e9
        if column == "tensor_rowid":
            return written[value]
        if column in ("user_id", "experiment_id", "run_id", "tag_id", "graph_id", "series") or (table, column) == ("Descriptions", "id"):
            return named.get(value, value)
        if column == "node_def":
            return str(tf.NodeDef.FromString(value))
        if isinstance(value, bytes) and value.startswith(b"\x89PNG"):
            return run("", lambda: tf.image.decode_png(value)).tolist()
        return value

    found = {t: sorted((repr([(c, plain(t, c, v)) for c, v in row.items() if c != "rowid"]) for row in rows[t])) for t in TABLES}
    return schema, columns, indices, found


def databases_are_the_same():
    files = path("ours.db"), path("theirs.db")
    ours, theirs = (write_database(target, file) for target, file in zip((TARGET, ""), files))
    assert ours == theirs, [(i, mine, other) for i, (mine, other) in enumerate(zip(ours, theirs)) if mine != other]
    for mine, other in zip(rows_of(files[0]), rows_of(files[1])):
        if isinstance(mine, dict):
            for table in TABLES:
                different = [(a, b) for a, b in zip(mine[table], other[table]) if a != b]
                assert mine[table] == other[table], (table, len(mine[table]), len(other[table]), different[:2])
        assert mine == other, (mine, other)
    passed("databases of summaries are the same")


def event_files_are_the_same():
    ours, theirs = (write_events(target, path(f"events-{side}")) for side, target in (("ours", TARGET), ("theirs", "")))
    assert ours[0] == theirs[0], "\n".join(f"{mine}\n    {other}" for mine, other in zip(ours[0], theirs[0]) if mine != other)
    assert ours[1] == theirs[1], (ours[1], theirs[1])
    assert ours[2][:2] == theirs[2][:2], (ours[2][:2], theirs[2][:2])
    for mine, other in zip(ours[2][2], theirs[2][2], strict=True):
        for a, b in zip(mine.summary.value, other.summary.value, strict=True):
            if a.HasField("image"):
                decode = lambda s: run("", lambda: tf.image.decode_png(s.image.encoded_image_string))
                assert (decode(a) == decode(b)).all()
                a.image.encoded_image_string = b.image.encoded_image_string
        if mine.graph_def:
            mine.graph_def = other.graph_def
        assert mine == other, (mine, other)
    passed("event files are the same")


def writers_of_scripts():
    """Summaries written with `create_file_writer` in a graph."""
    v2 = tf.compat.v2.summary
    folder = path("writers")
    with tf.Graph().as_default(), tf.Session(TARGET) as session:
        step = tf.get_variable("step", [], tf.int64, tf.zeros_initializer(), use_resource=True)
        writer = v2.create_file_writer(folder)
        with writer.as_default():
            write = [v2.write("a", tf.cast(step, tf.float32), step=step), v2.write("t", tf.constant("b"), step=step)]
        session.run([step.initializer, writer.init()])
        for _ in range(3):
            session.run(write)
            session.run(tf.assign_add(step, 1))
        session.run(writer.close())
    _, suffix, events = events_of(folder)
    assert suffix == "v2" and [e.step for e in events] == [0, 0, 0, 1, 1, 2, 2], events
    passed("writers of scripts")


def folders_of_checkpoints():
    """Saving creates the folder of the checkpoint, but not its parents; a file in place of the folder is an error."""

    def outcomes_on(target, side):
        os.makedirs(path(side))
        open(path(side, "file"), "w").close()
        outcomes = []
        for place in ("here", "made/here", "not/made/here", "file/here"):
            prefix = path(side, place)
            try:
                run(target, lambda: tf.raw_ops.SaveV2(prefix=prefix, tensor_names=["x"], shape_and_slices=[""], tensors=[tf.constant([1.0])]))
                outcomes.append(sorted(os.path.basename(name) for name in glob.glob(f"{prefix}*")))
            except tf.errors.OpError as error:
                outcomes.append(type(error).__name__)
        return outcomes

    ours, theirs = outcomes_on(TARGET, "folders of ours"), outcomes_on("", "folders of theirs")
    assert ours == theirs, (ours, theirs)
    passed("folders of checkpoints")


def monitored_session_resumes():
    folder = path("monitored")
    for last in (5, 9):
        with tf.Graph().as_default():
            with tf.device(tf.train.replica_device_setter(ps_tasks=2)):
                step = tf.train.get_or_create_global_step()
                w = tf.get_variable("w", [2], initializer=tf.zeros_initializer(), use_resource=False)
            more = tf.group(tf.assign_add(w, tf.ones([2])), tf.assign_add(step, 1))
            tf.summary.scalar("first", w[0])
            hooks = [tf.train.StopAtStepHook(last_step=last)]
            scaffold = tf.train.Scaffold(saver=tf.train.Saver(sharded=True))
            with tf.train.MonitoredTrainingSession(
                TARGET, checkpoint_dir=folder, hooks=hooks, scaffold=scaffold, save_checkpoint_steps=2, save_summaries_steps=1, log_step_count_steps=None
            ) as session:
                while not session.should_stop():
                    session.run(more)
        reader = tf.train.load_checkpoint(folder)
        assert reader.get_tensor("global_step") == last and list(reader.get_tensor("w")) == [last, last]
    events = [v.simple_value for f in glob.glob(f"{folder}/events*") for e in tf.train.summary_iterator(f) for v in e.summary.value if v.tag == "first"]
    assert len(events) >= 9, events
    passed("a monitored session goes on from its checkpoint")


try:
    bytes_are_the_same()
    restored_in_other_parts()
    many_names()
    first_format()
    savers(False)
    savers(True)
    from_another_server()
    summaries_are_the_same()
    event_files_are_the_same()
    databases_are_the_same()
    writers_of_scripts()
    folders_of_checkpoints()
    monitored_session_resumes()
finally:
    shutil.rmtree(FOLDER, ignore_errors=True)
