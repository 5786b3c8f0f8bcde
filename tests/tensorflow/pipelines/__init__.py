"""Input pipelines, each a function that returns a dataset, and the functions that compare them. The modules group them by
the source of the elements."""
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

Dataset = tf.data.Dataset
PIPELINES = []


def pipeline(f):
    """Registers a function that returns a dataset, whose elements are compared."""
    PIPELINES.append(f)
    return f


# Largest number of elements that are compared.
MOST = 60


def elements(target, make, one_shot):
    """Returns up to MOST elements of a pipeline, each a list of arrays or an error's class, and whether it has ended."""
    with tf.Graph().as_default():
        tf.set_random_seed(17)
        dataset = make()
        if one_shot:
            iterator = tf.data.make_one_shot_iterator(dataset)
        else:
            iterator = tf.data.make_initializable_iterator(dataset)
        parts = tf.nest.flatten(iterator.get_next(), expand_composites=True)
        with tf.Session(target) as session:
            if not one_shot:
                session.run(iterator.initializer)
            got = []
            while len(got) < MOST:
                try:
                    got.append(session.run(parts))
                except tf.errors.OutOfRangeError as end:
                    assert "End of sequence" in str(end), end
                    assert end.op is not None and end.op.type == "IteratorGetNext", end.op
                    return got, "end"
                except tf.errors.OpError as error:
                    got.append(type(error).__name__)
                    if got[-3:] == [got[-1]] * 3:
                        break
            return got, "more"


def same(ours, theirs):
    """Asserts that two lists of elements are equal."""
    assert len(ours) == len(theirs), f"{len(ours)} elements, not {len(theirs)}: {ours} {theirs}"
    for i, (a, b) in enumerate(zip(ours, theirs)):
        assert type(a) is type(b) and len(a) == len(b), f"element {i}: {a} {b}"
        if isinstance(a, str):
            assert a == b, f"element {i}: {a} {b}"
            continue
        for x, y in zip(a, b):
            x, y = np.asarray(x), np.asarray(y)
            assert x.shape == y.shape, f"element {i}: {x} {y}"
            if x.dtype.kind in "OS":
                assert x.tolist() == y.tolist(), f"element {i}: {x} {y}"
            else:
                np.testing.assert_array_equal(x, y, err_msg=f"element {i}")
                assert x.dtype == y.dtype


from pipelines import comma_separated, damaged, databases, files, functions, memory, raw  # noqa: E402,F401
