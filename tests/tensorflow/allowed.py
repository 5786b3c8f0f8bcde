"""Where an answer may differ from TensorFlow's, and why. An entry holds a call that shows the difference: the comparison
fails when that call no longer does. Only where the peer then writes beyond its memory there is no call."""
import collections
import re

import numpy as np

from cases import Call

# `ops` and `difference` are regular expressions, for the op's name and for what `generated.py` says of a case.
Allowed = collections.namedtuple("Allowed", "ops difference reason op types call")

F = lambda *shape: np.ones(shape, np.float32)
I = lambda *values: np.array(values, np.int32)
L = lambda *values: np.array(values, np.int64)
TEXT = lambda value: np.array(value, object)

ALLOWED = (
    Allowed(
        ".*",
        r"np\.complex(64|128)\(.*(nan|inf)",
        "formulas of complex numbers differ in which part an infinity or NaN reaches",
        "Acos", {"T": "complex128"}, Call(np.array([complex(0, -np.inf)])),
    ),
    Allowed(
        "AvgPool(3D)?Grad",
        r"Expected grad shape .*, not no error",
        "the peer takes a gradient of another shape for one that fits, and reads beyond it",
        "AvgPool3DGrad", {"T": "float"},
        Call(I(1, 4, 4, 4, 1), F(1, 4, 4, 4, 1), ksize=[1, 1, 2, 1, 1], strides=[1] * 5, padding="VALID"),
    ),
    Allowed(
        "FractionalAvgPoolGrad",
        r"(pooling_sequence must rise|which does not fit).*, not no error",
        "the peer sums into what the sequences leave of the image, whatever they hold",
        "FractionalAvgPoolGrad", {"T": "double"},
        Call(L(2, 5, 7, 1), np.ones((2, 3, 4, 2)), L(0, 2, 3, 5), L(0, 2, 4, 6, 7), overlapping=False),
    ),
    Allowed(
        "ResizeBicubicGrad",
        r"do not fit an image.*, not no error",
        "the peer does not look at the gradient's batch and channels",
        "ResizeBicubicGrad", {"T": "double"}, Call(F(2, 4, 1, 3), np.ones((2, 1, 5, 4)), align_corners=True),
    ),
    Allowed(
        "DepthwiseConv2dNativeBackprop(Filter|Input)",
        r"(Dilated rates|support dilations).*, not no error",
        "the peer's gradients do not look at dilations, which its forward kernel refuses",
        "DepthwiseConv2dNativeBackpropFilter", {"T": "float"},
        Call(F(2, 5, 6, 3), I(2, 2, 3, 2), F(2, 2, 3, 6), strides=[1, 2, 2, 1], padding="VALID", dilations=[1, 0, 1, 1]),
    ),
    Allowed(
        "(Conv|Depthwise).*",
        r"not np\.float(16|32|64)\(nan\)|, not nan",
        "the peer multiplies the zeros of the padding too: with an infinity they give NaN",
        "Conv3DBackpropFilterV2", {"T": "float"},
        Call(np.full((1, 2, 2, 2, 1), np.inf, np.float32), I(3, 3, 3, 1, 1), F(1, 2, 2, 2, 1), strides=[1] * 5, padding="SAME"),
    ),
    Allowed(
        "Adjust(Hue|Saturation)|DrawBoundingBoxes(V2)?",
        r"(output 0|images?|boxes) .*differ\)",
        "an infinite channel has no hue, and an infinite corner no pixel",
        "AdjustHue", {"T": "float"}, Call(np.full((1, 1, 3), -np.inf, np.float32), np.float32(0.3)),
    ),
    Allowed(
        "(Batch)?(Cholesky|Qr|MatrixSolve|MatrixTriangularSolve|MatrixInverse|Svd)(Grad)?",
        r"not invertible.*, not no error|(nan|inf|0\.0).*, not",
        "a factorisation goes on with an infinity or NaN in another order",
        "Qr", {"T": "float"}, Call(np.array([[np.inf, 1], [1, 2]], np.float32), full_matrices=False),
    ),
    Allowed(
        "ReverseV2|Roll",
        r"out of (valid )?range.*, not no error",
        "the peer takes the low half of an axis of 64 bits",
        "Roll", {"T": "int8", "Tshift": "int32", "Taxis": "int64"}, Call(np.ones((2, 3), np.int8), I(1), L(2**40)),
    ),
    Allowed(
        "MaxPoolV2|AvgPool(Grad)?|MaxPool",
        r"must be positive.*, not no error",
        "the peer does not look at windows over nothing",
        "MaxPoolV2", {"T": "half"}, Call(np.ones((0, 4, 4, 2), np.float16), I(1, 2, 2, 1), I(1, 1, 1, -2), padding="VALID"),
    ),
    Allowed(
        ".*Pool.*",
        r"InvalidArgumentError: Sliding window.*, not UnimplementedError",
        "of a window that is not positive and over the batch or depth, either may be said first",
        "MaxPoolGradV2", {"T": "float"},
        Call(F(1, 5, 5, 2), F(1, 3, 5, 2), F(1, 5, 5, 2), I(-1, -1, -1, -1), I(1, 1, 1, 1), padding="SAME"),
    ),
    Allowed(
        "SparseConcat|EditDistance",
        r"InvalidArgumentError.*, not InternalError: (Encountered overflow|Got an inner product)",
        "a shape that is wrong is the caller's fault",
        "SparseConcat", {"T": "float"}, Call([L([0, 1])] * 2, [F(1)] * 2, [L(2, 3), L(2, -1)], concat_dim=-1),
    ),
    Allowed(
        "SparseCross.*",
        r"Invalid value -\d+ in sparse indices.*, not no error",
        "the peer writes before its memory for a row of a negative number",
        "SparseCrossV2", {}, None,
    ),
    Allowed(
        "BatchNormWithGlobalNormalization(Grad)?",
        r"(must be 1-dimensional with|must have the same shape).*, not no error",
        "the peer reads beyond vectors that are too short for the channels",
        "BatchNormWithGlobalNormalization", {"T": "float"},
        Call(F(1, 2, 2, 3), F(4), F(3), F(3), F(3), variance_epsilon=0.01, scale_after_normalization=True),
    ),
    Allowed(
        "ResourceGather",
        r"(batch_dims|the batch dimensions|is not in).*, not no error",
        "the peer does not look at the sizes of a batch, nor at indices before it added where their part begins",
        "ResourceGather", {"dtype": "float", "Tindices": "int32"},
        Call(F(2, 5), np.array([[0, 1], [2, -2]], np.int32), batch_dims=1),
    ),
    Allowed(
        "(Sparse|Resource|ResourceSparse)?ApplyCenteredRMSProp",
        r"np\.float16|not -?\d+\.\d+ at|bfloat16",
        "a variance that is the difference of two numbers alike is left to how each is rounded",
        "ApplyCenteredRMSProp", {"T": "half"},
        Call(
            *(np.array(v, np.float16) for v in ([0, -0.85], [-0.86, -0.58], [0.63, 1.16], [0.37, -0.46])),
            *(np.float16(v) for v in (0.13, 0.06, 0.58, 1e-3)), np.array([-1.26, -1.96], np.float16),
        ),
    ),
    Allowed(
        "CTCBeamSearchDecoder",
        r"output \d+ of step",
        "of paths that are equally likely any may come first",
        "CTCBeamSearchDecoder", {"T": "double"},
        Call(np.full((6, 2, 4), 0.5), I(6, 5), beam_width=20, top_paths=3),
    ),
    Allowed(
        "TensorSummaryV2",
        r"is no SummaryMetadata.*, not no error",
        "bytes that are no message are not taken for one",
        "TensorSummaryV2", {"T": "bool"}, Call(TEXT(b"tag"), np.array(True), TEXT(b" 12 ")),
    ),
    Allowed(
        ".*",
        r"not UnicodeDecodeError",
        "the client cannot show the peer's message, which holds the bytes that are wrong",
        "RegexReplace", {}, Call(TEXT([b"a"]), TEXT(b"\xff\xfe"), TEXT(b"b"), replace_global=True),
    ),
)


def entry_for(op, said):
    """The entry that allows what is said of an op's case."""
    for entry in ALLOWED:
        if re.fullmatch(entry.ops, op) and re.search(entry.difference, said):
            return entry
    return None
