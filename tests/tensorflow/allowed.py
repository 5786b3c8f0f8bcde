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
        ".*",
        r"InvalidArgumentError.*, not ResourceExhaustedError: OOM",
        "what is wrong and too large is refused before memory is asked for",
        "BroadcastTo", {"T": "uint64", "Tidx": "int32"}, Call(np.ones((2, 1, 3), np.uint64), I(1, 2, 4, 2**31 - 1)),
    ),
    Allowed(
        ".*",
        r"no error, not UnimplementedError: Broadcast between",
        "the peer has kernels for few axes that are broadcast in turn",
        "BitwiseAnd", {"T": "uint32"}, Call(np.ones((2, 1, 3, 1, 2), np.uint32), np.ones((2, 1, 4, 1, 5, 1), np.uint32)),
    ),
    Allowed(
        ".*Conv.*",
        r"(no error|InvalidArgumentError.*), not \w+: (Current|CPU) .*(dilation|dilated rates)",
        "the peer has no kernel for these dilated windows",
        "Conv3D", {"T": "float"},
        Call(F(1, 5, 5, 5, 1), F(2, 2, 2, 1, 2), strides=[1] * 5, padding="VALID", dilations=[1, 1, 2, 1, 1]),
    ),
    Allowed(
        ".*Pool3D.*",
        r"not InvalidArgumentError: Default \w+ only supports ?NDHWC",
        "the peer has no kernel for volumes with channels first",
        "AvgPool3D", {"T": "float"}, Call(F(1, 1, 4, 4, 4), ksize=[1] * 5, strides=[1] * 5, padding="VALID", data_format="NCDHW"),
    ),
    Allowed(
        "Cast",
        r"np\.u?int(8|16|32|64)\(-?\d+\), not np\.u?int(8|16|32|64)",
        "what is no number of the type is left to the machine, which answers by the place in the vector",
        "Cast", {"SrcT": "float", "DstT": "uint32"}, Call(np.full((3, 4), np.nan, np.float32)),
    ),
    Allowed(
        "(Resource)?ApplyAdam(WithAmsgrad)?",
        r"np\.float16",
        "squares that are too small for 16 bits are 0 to the peer, which rounds after each operation",
        "ApplyAdam", {"T": "half"},
        Call(
            *(np.full(3, v, np.float16) for v in (0.5, 0.1, 0)), *(np.float16(v) for v in (0.5, 0.5, 0.1, 0.9, 0, 1e-3)),
            np.full(3, 1.2e-4, np.float16), use_nesterov=True,
        ),
    ),
    Allowed(
        "Bessel[JY][01]",
        r"output 0 of step 0: np\.float32\(-?\d",
        "the peer rounds the phase of a large argument to single precision",
        "BesselJ1", {"T": "float"}, Call(np.full(3, 60000, np.float32)),
    ),
    Allowed(
        "(Sparse|Resource|ResourceSparse)?ApplyFtrl(V2)?",
        r"(inf|np\.float16\(-?inf\)), not (np\.float16\(0\.0\)|0 at)",
        "a difference that is 0 in 16 bits makes no number of an infinity",
        "ApplyFtrl", {"T": "bfloat16"},
        Call(
            *(np.full(3, v, np.float32).astype("bfloat16") for v in (-np.inf, 0.8, 0.5, 0.02)),
            *(np.float32(v).astype("bfloat16") for v in (0.1, 0.1, 0.1, -0.5)),
        ),
    ),
    Allowed(
        "Erf",
        r"np\.float64\(-?1\.0\), not np\.float64\(nan\)",
        "the peer's formula divides infinities",
        "Erf", {"T": "double"}, Call(np.array(np.inf)),
    ),
    Allowed(
        "EuclideanNorm",
        r"np\.int64\(0\), not",
        "a sum of squares that overflows has no root",
        "EuclideanNorm", {"T": "int64", "Tidx": "int32"}, Call(np.full((3, 4), 2**31 - 1, np.int64), I(1)),
    ),
    Allowed(
        "EditDistance|DenseBincount",
        r"(outside of the shape|must be non-negative).*, not no error",
        "the peer counts from -2^63 to a place that is there",
        "DenseBincount", {"Tidx": "int64", "T": "float"}, Call(L([1, -(2**63)]), np.int64(3), F(0), binary_output=True),
    ),
    Allowed(
        "I?R?FFT([23]D)?",
        r"np\.complex64\(",
        "single precision in transforms of prime lengths",
        "FFT", {"Tcomplex": "complex64"}, Call(np.full((1, 1, 67), 3 - 2j, np.complex64)),
    ),
    Allowed(
        "RaggedTensorToTensor",
        r"(Invalid row split size|the partitions have).*, not no error|shape \(0, .*, not \(\d+, ",
        "the peer reads beyond values that are too few and splits that are no vector, and does not look at what splits before the last say",
        "RaggedTensorToTensor", {"T": "float", "Tindex": "int64", "Tshape": "int64"},
        Call(L(-1, -1), F(3), np.float32(0), [L(0, 2, 2, 5)], row_partition_types=["ROW_SPLITS"]),
    ),
    Allowed(
        "RaggedGather",
        r"OUTPUT_RAGGED_RANK must be .*, not InternalError",
        "outputs that are not as many as the indices ask for are the caller's fault; the peer may end then",
        "RaggedGather", {}, None,
    ),
    Allowed(
        "RaggedTensorToSparse",
        r"output 2 of step 0: np\.int64",
        "the peer counts the rows of splits that are no vector by their first axis",
        "RaggedTensorToSparse", {"T": "float", "Tsplits": "int64"}, Call([L([0, 2, 2, 5])], F(5)),
    ),
    Allowed(
        "AvgPool(3D)?Grad",
        r"Expected grad shape .*, not no error",
        "the peer takes a gradient of another shape for one that fits, and reads beyond it",
        "AvgPool3DGrad", {"T": "float"},
        Call(I(1, 4, 4, 4, 1), F(1, 4, 4, 4, 1), ksize=[1, 1, 2, 1, 1], strides=[1] * 5, padding="VALID"),
    ),
    Allowed(
        "Fractional(Avg|Max)PoolGrad",
        r"(pooling_sequence must|which does not fit|out_backprop \[).*, not no error",
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
        r"(Dilated rates|dilations|doesn't match computed).*, not no error",
        "the peer's gradients do not look at dilations, which its forward kernel refuses",
        "DepthwiseConv2dNativeBackpropFilter", {"T": "float"},
        Call(F(2, 5, 6, 3), I(2, 2, 3, 2), F(2, 2, 3, 6), strides=[1, 2, 2, 1], padding="VALID", dilations=[1, 0, 1, 1]),
    ),
    Allowed(
        "(Conv|Depthwise).*",
        r"(not np\.float(16|32|64)\(nan\)|, not nan)|step 0: (np\.float(16|32|64)\(nan\)|nan), not",
        "whether the zeros of the padding are multiplied too: with an infinity they give NaN",
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
        "(Batch)?(Cholesky|Qr|MatrixSolve(Ls)?|MatrixTriangularSolve|MatrixInverse|Svd)(Grad)?",
        r"not invertible.*, not no error|(nan|inf|0\.0).*, not",
        "a factorisation goes on with an infinity or NaN in another order",
        "Qr", {"T": "float"}, Call(np.array([[np.inf, 1], [1, 2]], np.float32), full_matrices=False),
    ),
    Allowed(
        "ReverseV2|Roll|ArgM(ax|in)|(Conjugate)?Transpose|(Batch|Space)To(Space|Batch)(ND)?",
        r"(out of (valid )?range|in the range|must be at least).*, not no error",
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
