"""Lookup tables: immutable and mutable ones."""
import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

from . import scenario

WORDS = [b"one", b"two", b"three"]


@scenario
def tables_are_initialised_once(peer):
    for keys, values, default in (
        (WORDS, [1, 2, 3], -1),
        (WORDS, [b"x", b"y", b"z"], b"none"),
        (WORDS, [1.5, 2.5, 3.5], -1.0),
        (WORDS, [True, False, True], False),
        (WORDS, np.array([1, 2, 3], np.int64), np.int64(-1)),
        (np.array([5, 6, 7], np.int64), [b"x", b"y", b"z"], b"none"),
        (np.array([5, 6, 7], np.int64), np.array([1, 2, 3], np.int64), np.int64(-1)),
        (np.array([5, 6, 7], np.int32), np.array([1, 2, 3], np.float64), np.float64(-1)),
    ):
        with tf.Graph().as_default():
            init = tf.lookup.KeyValueTensorInitializer(tf.constant(keys), tf.constant(values))
            table = tf.lookup.StaticHashTable(init, default, name=peer.name("t"))
            ask = tf.constant(np.array(keys)[[2, 0, 0]])
            missing = tf.constant([[b"no"], [keys[1]]] if keys is WORDS else np.array([[99], [keys[1]]], keys.dtype))
            with peer.session() as s:
                peer.record("early", lambda: s.run(table.lookup(ask)))
                peer.record("early", lambda: s.run(table.size()))
                s.run(tf.tables_initializer())
                peer.record("found", s.run(table.lookup(ask)))
                peer.record("missing", s.run(table.lookup(missing)))
                peer.record("size", s.run(table.size()))
                peer.record("again", s.run(tf.tables_initializer()))


@scenario
def invalid_initialisations_are_refused(peer):
    raw = tf.raw_ops
    handle = raw.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64, shared_name=peer.name("t"))
    k, v = tf.placeholder(tf.string), tf.placeholder(tf.int64)
    init = raw.InitializeTableV2(table_handle=handle, keys=k, values=v)
    with peer.session() as s:
        peer.record("count", lambda: s.run(init, {k: [b"a", b"b"], v: [1]}))
        peer.record("rank", lambda: s.run(init, {k: [[b"a", b"b"]], v: [[1, 2]]}))
        peer.record("scalar", lambda: s.run(init, {k: b"a", v: 1}))
        peer.record("double", lambda: s.run(init, {k: [b"a", b"a"], v: [1, 2]}))
        wrong = raw.InitializeTableV2(table_handle=handle, keys=[1], values=v)
        peer.record("type", lambda: s.run(wrong, {v: [1]}))
        peer.record("twice the same", lambda: s.run(init, {k: [b"a", b"a"], v: [1, 1]}))
        peer.record("size", lambda: s.run(raw.LookupTableSizeV2(table_handle=handle)))
        peer.record("other", lambda: s.run(init, {k: [b"c"], v: [1]}))
        peer.record("find of another type", lambda: s.run(raw.LookupTableFindV2(table_handle=handle, keys=[b"a"], default_value=1.0)))
        peer.record("find of another key", lambda: s.run(raw.LookupTableFindV2(table_handle=handle, keys=[1], default_value=tf.constant(1, tf.int64))))
        peer.record("default", lambda: s.run(raw.LookupTableFindV2(table_handle=handle, keys=[b"a"], default_value=tf.constant([1, 2], tf.int64))))
        peer.record("insert", lambda: s.run(raw.LookupTableInsertV2(table_handle=handle, keys=[b"a"], values=tf.constant([1], tf.int64))))
        peer.record("remove", lambda: s.run(raw.LookupTableRemoveV2(table_handle=handle, keys=[b"a"])))
        peer.record("import", lambda: s.run(raw.LookupTableImportV2(table_handle=handle, keys=[b"q"], values=tf.constant([1], tf.int64))))
        peer.record("export", lambda: s.run(raw.LookupTableExportV2(table_handle=handle, Tkeys=tf.string, Tvalues=tf.int64)))


@scenario
def tables_from_text_files(peer):
    path = os.path.join(tempfile.gettempdir(), f"{peer.run}.txt")
    columns = f"{path}.columns"
    with open(path, "w") as f:
        f.write("apple\npear\nplum\n")
    with open(columns, "w") as f:
        f.write("a,1,1.5\nb,2,2.5\nc,x,3.5\n")
    raw = tf.raw_ops

    def table(keys, values, file, **options):
        handle = raw.HashTableV2(key_dtype=keys, value_dtype=values, shared_name=peer.name("t"))
        return handle, raw.InitializeTableFromTextFileV2(table_handle=handle, filename=file, **options)

    try:
        with peer.session() as s:
            handle, init = table(tf.string, tf.int64, path, key_index=-2, value_index=-1)
            s.run(init)
            find = raw.LookupTableFindV2(table_handle=handle, keys=[b"plum", b"fig"], default_value=tf.constant(-1, tf.int64))
            peer.record("line numbers", s.run(find))
            peer.record("again", s.run(init))
            handle, init = table(tf.int64, tf.string, path, key_index=-1, value_index=-2)
            s.run(init)
            find = raw.LookupTableFindV2(table_handle=handle, keys=tf.constant([2, 0, 9], tf.int64), default_value=b"?")
            peer.record("lines", s.run(find))
            handle, init = table(tf.string, tf.float32, columns, key_index=0, value_index=2, delimiter=",")
            s.run(init)
            find = raw.LookupTableFindV2(table_handle=handle, keys=[b"b", b"c"], default_value=-1.0)
            peer.record("columns", s.run(find))
            calls = [
                (tf.string, tf.int64, columns, dict(key_index=0, value_index=1, delimiter=",")),
                (tf.string, tf.int64, columns, dict(key_index=0, value_index=3, delimiter=",")),
                (tf.string, tf.int64, path + ".none", dict(key_index=-2, value_index=-1)),
                (tf.string, tf.int64, path, dict(key_index=-2, value_index=-1, vocab_size=2)),
                (tf.string, tf.int64, path, dict(key_index=-2, value_index=-1, vocab_size=5)),
                (tf.string, tf.int64, path, dict(key_index=-2, value_index=-1, vocab_size=0)),
                (tf.string, tf.int64, path, dict(key_index=-2, value_index=-2)),
                (tf.string, tf.int64, path, dict(key_index=-1, value_index=-1)),
                (tf.string, tf.int64, path, dict(key_index=-2, value_index=-1, delimiter="ab")),
                (tf.string, tf.int64, path, dict(key_index=-2, value_index=-1, offset=2)),
                (tf.string, tf.int64, path, dict(key_index=-2, value_index=-1, offset=-2)),
                (tf.string, tf.string, path, dict(key_index=-2, value_index=-1)),
                (tf.int64, tf.string, columns, dict(key_index=1, value_index=0, delimiter=",")),
            ]
            for keys, values, file, options in calls:
                handle, init = table(keys, values, file, **options)
                peer.record(str(options), lambda: s.run(init))
                size = raw.LookupTableSizeV2(table_handle=handle)
                peer.record(str(options), lambda: s.run(size))
    finally:
        os.remove(path)
        os.remove(columns)


def pairs(exported):
    keys, values = exported
    return sorted(zip(keys.tolist(), values.tolist()))


@scenario
def mutable_tables(peer):
    raw = tf.raw_ops
    for key, value in (
        (tf.string, tf.int64),
        (tf.string, tf.float32),
        (tf.string, tf.bool),
        (tf.int64, tf.string),
        (tf.int64, tf.float64),
        (tf.int32, tf.int32),
    ):
        with tf.Graph().as_default():
            handle = raw.MutableHashTableV2(key_dtype=key, value_dtype=value, shared_name=peer.name("t"))
            k, v = tf.placeholder(key), tf.placeholder(value)
            of = (lambda i: str(i).encode()) if key == tf.string else int
            to = (lambda i: str(i).encode()) if value == tf.string else value.as_numpy_dtype
            insert = raw.LookupTableInsertV2(table_handle=handle, keys=k, values=v)
            imports = raw.LookupTableImportV2(table_handle=handle, keys=k, values=v)
            remove = raw.LookupTableRemoveV2(table_handle=handle, keys=k)
            find = raw.LookupTableFindV2(table_handle=handle, keys=k, default_value=tf.constant(to(0), value))
            export = raw.LookupTableExportV2(table_handle=handle, Tkeys=key, Tvalues=value)
            size = raw.LookupTableSizeV2(table_handle=handle)
            with peer.session() as s:
                s.run(insert, {k: [of(1), of(2)], v: [to(1), to(2)]})
                s.run(insert, {k: [[of(2), of(3)]], v: [[to(1), to(3)]]})
                peer.record("found", s.run(find, {k: [[of(1)], [of(2)], [of(9)]]}))
                peer.record("export", pairs(s.run(export)))
                s.run(remove, {k: [of(1), of(77)]})
                peer.record("size", s.run(size))
                s.run(imports, {k: [of(8)], v: [to(1)]})
                peer.record("imported", pairs(s.run(export)))
                peer.record("count", lambda: s.run(insert, {k: [of(1)], v: [to(1), to(2)]}))


@scenario
def mutable_tables_of_tensors(peer):
    raw = tf.raw_ops
    makers = [
        lambda: raw.MutableHashTableOfTensorsV2(key_dtype=tf.string, value_dtype=tf.int64, value_shape=[2], shared_name=peer.name("t")),
        lambda: raw.MutableDenseHashTableV2(
            empty_key=b"", deleted_key=b"-", value_dtype=tf.int64, value_shape=[2], initial_num_buckets=4, shared_name=peer.name("t")
        ),
    ]
    for make in makers:
        with tf.Graph().as_default():
            handle = make()
            k, v = tf.placeholder(tf.string), tf.placeholder(tf.int64)
            insert = raw.LookupTableInsertV2(table_handle=handle, keys=k, values=v)
            find = raw.LookupTableFindV2(table_handle=handle, keys=k, default_value=tf.constant([-1, -2], tf.int64))
            export = raw.LookupTableExportV2(table_handle=handle, Tkeys=tf.string, Tvalues=tf.int64)
            remove = raw.LookupTableRemoveV2(table_handle=handle, keys=k)
            size = raw.LookupTableSizeV2(table_handle=handle)
            with peer.session() as s:
                s.run(insert, {k: [str(i).encode() for i in range(30)], v: [[i, i * i] for i in range(30)]})
                peer.record("found", s.run(find, {k: [b"3", b"x", b"29"]}))
                peer.record("found", s.run(find, {k: [[b"3"], [b"x"]]}))
                s.run(remove, {k: [b"3", b"4"]})
                peer.record("found", s.run(find, {k: [b"3", b"5"]}))
                peer.record("size", s.run(size))
                peer.record("shape", lambda: s.run(insert, {k: [b"1"], v: [1]}))
                peer.record("shape", lambda: s.run(insert, {k: [b"1"], v: [[1, 2, 3]]}))
                # A dense table may export its empty buckets, and exports keys as rows.
                keys, values = s.run(export)
                rows = zip(keys.ravel().tolist(), values.reshape([keys.size, 2]).tolist())
                peer.record("export", sorted(row for row in rows if row[0] not in (b"", b"-")))


@scenario
def dense_tables_refuse_special_keys(peer):
    raw = tf.raw_ops
    handle = raw.MutableDenseHashTableV2(
        empty_key=tf.constant(0, tf.int64), deleted_key=tf.constant(-1, tf.int64), value_dtype=tf.int64, shared_name=peer.name("t")
    )
    k = tf.placeholder(tf.int64)
    insert = raw.LookupTableInsertV2(table_handle=handle, keys=k, values=k)
    find = raw.LookupTableFindV2(table_handle=handle, keys=k, default_value=tf.constant(7, tf.int64))
    remove = raw.LookupTableRemoveV2(table_handle=handle, keys=k)
    with peer.session() as s:
        for op in (insert, find, remove):
            peer.record("empty", lambda: s.run(op, {k: [0]}))
            peer.record("deleted", lambda: s.run(op, {k: [-1]}))
        s.run(insert, {k: [3, 4]})
        peer.record("found", s.run(find, {k: [3, 5]}))
    makers = [
        lambda: raw.MutableDenseHashTableV2(empty_key=1, deleted_key=1, value_dtype=tf.int32, shared_name=peer.name("t")),
        lambda: raw.MutableDenseHashTableV2(empty_key=1, deleted_key=2, value_dtype=tf.int32, initial_num_buckets=3, shared_name=peer.name("t")),
        lambda: raw.MutableDenseHashTableV2(empty_key=1, deleted_key=2, value_dtype=tf.int32, max_load_factor=1.5, shared_name=peer.name("t")),
        lambda: raw.MutableDenseHashTableV2(empty_key=[1], deleted_key=2, value_dtype=tf.int32, shared_name=peer.name("t")),
        lambda: raw.MutableHashTableOfTensorsV2(key_dtype=tf.string, value_dtype=tf.int64, value_shape=[2, 2], shared_name=peer.name("t")),
    ]
    for i, make in enumerate(makers):
        with tf.Graph().as_default():
            size = raw.LookupTableSizeV2(table_handle=make())
            with peer.session() as s:
                peer.record(f"maker {i}", lambda: s.run(size))


@scenario
def tables_are_shared_by_name(peer):
    raw = tf.raw_ops
    name = peer.name("t")
    first = raw.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64, shared_name=name)
    others = [
        raw.HashTableV2(key_dtype=tf.string, value_dtype=tf.int32, shared_name=name),
        raw.MutableHashTableV2(key_dtype=tf.string, value_dtype=tf.int64, shared_name=name),
    ]
    with peer.session() as s:
        s.run(raw.InitializeTableV2(table_handle=first, keys=[b"a"], values=tf.constant([4], tf.int64)))
        for other in others:
            peer.record("other", lambda: s.run(raw.LookupTableSizeV2(table_handle=other)))


@scenario
def tables_by_reference(peer):
    raw = tf.raw_ops
    handle = raw.HashTable(key_dtype=tf.string, value_dtype=tf.int64, shared_name=peer.name("t"))
    k, v = tf.constant(WORDS), tf.constant([1, 2, 3], tf.int64)
    zero = tf.constant(0, tf.int64)
    find = raw.LookupTableFind(table_handle=handle, keys=k, default_value=zero)
    with peer.session() as s:
        peer.record("early", lambda: s.run(find))
        s.run(raw.InitializeTable(table_handle=handle, keys=k, values=v))
        peer.record("found", s.run(find))
        peer.record("size", s.run(raw.LookupTableSize(table_handle=handle)))
    for handle in (
        raw.MutableHashTable(key_dtype=tf.string, value_dtype=tf.int64, shared_name=peer.name("t")),
        raw.MutableHashTableOfTensors(key_dtype=tf.string, value_dtype=tf.int64, shared_name=peer.name("t")),
    ):
        with peer.session() as s:
            peer.record("insert", lambda: s.run(raw.LookupTableInsert(table_handle=handle, keys=k, values=v)))
            peer.record("found", lambda: s.run(raw.LookupTableFind(table_handle=handle, keys=k, default_value=zero)))
            peer.record("import", lambda: s.run(raw.LookupTableImport(table_handle=handle, keys=k, values=v)))
            peer.record("size", lambda: s.run(raw.LookupTableSize(table_handle=handle)))


@scenario
def anonymous_tables(peer):
    raw = tf.raw_ops
    for handle in (
        raw.AnonymousMutableHashTable(key_dtype=tf.string, value_dtype=tf.int64),
        raw.AnonymousMutableHashTableOfTensors(key_dtype=tf.string, value_dtype=tf.int64),
        raw.AnonymousMutableDenseHashTable(empty_key=b"", deleted_key=b"-", value_dtype=tf.int64),
    ):
        insert = raw.LookupTableInsertV2(table_handle=handle, keys=WORDS, values=tf.constant([1, 2, 3], tf.int64))
        with tf.control_dependencies([insert]):
            find = raw.LookupTableFindV2(table_handle=handle, keys=WORDS, default_value=tf.constant(0, tf.int64))
        with peer.session() as s:
            peer.record("found", lambda: s.run(find))
            peer.record("size", lambda: s.run(raw.LookupTableSizeV2(table_handle=handle)))
