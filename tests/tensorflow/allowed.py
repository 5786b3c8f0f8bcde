"""Where an answer may differ from TensorFlow's, and why. An entry holds a call that shows the difference: the comparison
fails when that call no longer does. Only where the peer then writes beyond its memory there is no call."""
import collections
import re

import numpy as np

from cases import Call

# `ops` and `difference` are regular expressions, for the op's name and for what `generated.py` says of a case. Where a
# difference of values is allowed, `change` says of which changed calls: another one, for what was changed in a case.
Allowed = collections.namedtuple("Allowed", "ops difference reason op types call change", defaults=("",))

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
        r"no error, not UnimplementedError: (Broadcast between|Substr broadcast)",
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
        ".*Pool.*",
        r"not InvalidArgumentError: \w+ \w* ?only supports ?(NDHWC|NHWC)",
        "the peer has no kernel for images and volumes with channels first",
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
        "I?R?FFT[23]?D?",
        r"output 0 .*\(?0(\.0|j)\)?, not",
        "the peer leaves the transform of nothing as its memory was",
        "IRFFT2D", {}, None,
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
        "(ResizeBicubic|ResizeBilinear|ScaleAndTranslate)Grad",
        r"(do not fit an image|must be of non-zero size).*, not no error",
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
        "Adjust(Hue|Saturation)|RGBToHSV|DrawBoundingBoxes(V2)?",
        r"(output 0|images?|boxes) .*differ\)",
        "an infinite channel has no hue, and an infinite corner no pixel",
        "AdjustHue", {"T": "float"}, Call(np.full((1, 1, 3), -np.inf, np.float32), np.float32(0.3)),
    ),
    Allowed(
        "(Batch)?(Cholesky|Lu|Qr|MatrixSolve(Ls)?|MatrixTriangularSolve|MatrixInverse|Svd)(Grad)?",
        r"not invertible.*, not no error|(nan|inf|0\.0).*, not",
        "a factorisation goes on with an infinity or NaN in another order",
        "Qr", {"T": "float"}, Call(np.array([[np.inf, 1], [1, 2]], np.float32), full_matrices=False),
    ),
    Allowed(
        "ReverseV2|Roll|TopKV2|ArgM(ax|in)|(Conjugate)?Transpose|(Batch|Space)To(Space|Batch)(ND)?|RaggedGather|RandomCrop",
        r"(out of (valid )?range|in the range|must be at least|is not in|must be >=|must not be negative|Need k >= 0).*, not (no error|Resource)",
        "the peer takes the low half of an axis, an index or a size of 64 bits",
        "Roll", {"T": "int8", "Tshift": "int32", "Taxis": "int64"}, Call(np.ones((2, 3), np.int8), I(1), L(2**40)),
    ),
    Allowed(
        ".*Pool.*",
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
        "SparseConcat|EditDistance|SetSize",
        r"InvalidArgumentError.*, not (no error|InternalError: (Encountered overflow|Got an inner product|indices|Invalid dim_size))",
        "a shape that is wrong is the caller's fault",
        "SparseConcat", {"T": "float"}, Call([L([0, 1])] * 2, [F(1)] * 2, [L(2, 3), L(2, -1)], concat_dim=-1),
    ),
    Allowed(
        "SparseCross.*",
        r"(InvalidArgumentError|Resource).*, not (no error|InvalidArgumentError)",
        "the peer takes columns that are no sparse tensors, and writes outside of its memory for rows that are not there",
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
        "LRN(Grad)?",
        r"output 0 .*(nan|inf|e\+3\d)",
        "the peer's running sum of squares stays without a number once it was",
        "LRN", {"T": "float"}, Call(np.array([[[[np.inf, 1, 2, 3, 4, 5, 6, 7]]]], np.float32), depth_radius=1),
    ),
    Allowed(
        "Roll|MatrixBandPart",
        r"output 0 of step",
        "the peer takes the low half of a shift or a number of diagonals of 64 bits",
        "MatrixBandPart", {"T": "float", "Tindex": "int64"}, Call(F(3, 3), np.int64(-(2**63)), np.int64(0)),
        change=r"(shift|num_lower|num_upper) \w+ -?\d{10,}",
    ),
    Allowed(
        "MaxPool3D.*",
        r"nan",
        "the peer's maximum with what is no number is that of the pair that comes last",
        "MaxPool3D", {"T": "bfloat16"},
        Call(np.full((1, 2, 1, 1, 1), np.nan, np.float32).astype("bfloat16"), ksize=[1] * 5, strides=[1] * 5, padding="VALID"),
    ),
    Allowed(
        "RandomGammaGrad",
        r"not np\.float(32|64)\(-?0\.0\)",
        "where the density is too small for a number of the type, the peer gives no slope",
        "RandomGammaGrad", {"T": "double"}, Call(np.array(1.5), np.array(3e38)),
    ),
    Allowed(
        "RaggedRange",
        r"np\.int\d+\(1\), not np\.int\d+\(0\)",
        "numbers below the normal ones are 0 to the peer",
        "RaggedRange", {"T": "float", "Tsplits": "int64"}, Call(np.float32(0), np.array([1], np.float32), np.float32(3e38)),
    ),
    Allowed(
        "Rng(ReadAnd)?Skip",
        r"variable 0 of step \d: np\.int64",
        "the peer loses what is carried from the low half of a counter when it skips by nearly 2^64",
        "RngSkip", {}, Call(L(-1, -1, 1), np.int64(1), np.int64(-1)),
        change=r"(delta|resource) (all|negated|first|last)",
    ),
    Allowed(
        "Parse(Single)?Example(V2)?",
        r"Could not parse example input.*, not no error",
        "the peer passes over a field that is longer than the message",
        "ParseSingleExample", {"Tdense": "string", "sparse_types": "float"},
        Call(TEXT(b" 12 "), [TEXT([b"d"])], num_sparse=1, sparse_keys=["s"], dense_keys=["d"], dense_shapes=[[1]], sparse_types=["float"]),
    ),
    Allowed(
        "Qr",
        r"output [01] of step",
        "the columns that a matrix of lesser rank leaves free may be any",
        "Qr", {"T": "double"}, Call(np.ones((3, 3)), full_matrices=False),
        change="input (all|twice|every)",
    ),
    Allowed(
        "QuantizeAndDequantizeV[24]",
        r"no error, not InvalidArgumentError: input_m\w+ must be a scalar",
        "the peer has no range a slice, which it documents",
        "QuantizeAndDequantizeV2", {"T": "float"},
        Call(F(2, 3), F(3), F(3), signed_input=True, num_bits=8, range_given=True, axis=1),
    ),
    Allowed(
        "QuantizeAndDequantizeV3",
        r"no error, not InvalidArgumentError: Axis requested is larger",
        "the peer takes no scalar, although it has no axis that is asked for",
        "QuantizeAndDequantizeV3", {"T": "float"}, Call(np.float32(1), np.float32(0), np.float32(1), np.int32(8), range_given=False),
    ),
    Allowed(
        "(Resource)?Apply(Adadelta|AdamWithAmsgrad)",
        r"do not have the same shape.*, not no error",
        "the peer does not look at the shape of the last slot, and reads beyond it",
        "ResourceApplyAdadelta", {}, None,
    ),
    Allowed(
        "(Resource)?SparseApply.*",
        r"must have the same rank.*, not no error",
        "the peer compares only the axes that the variable has",
        "SparseApplyProximalGradientDescent", {"T": "float", "Tindices": "int32"},
        Call(F(5, 3), np.float32(0.1), np.float32(0), np.float32(0), F(3, 3, 1), I(0, 1, 2)),
    ),
    Allowed(
        "(Resource)?SparseApply.*",
        r"no error, not InvalidArgumentError: Inner dimension should be greater than zero",
        "rows without elements have nothing to update",
        "SparseApplyFtrlV2", {"T": "float", "Tindices": "int32"},
        Call(F(5, 0), F(5, 0), F(5, 0), F(0, 0), I(), *(np.float32(v) for v in (0.1, 0, 0, 0, -0.5))),
    ),
    Allowed(
        "(Resource)?SparseApply.*",
        r"(nan|inf)",
        "the peer's sparse forms have formulas of their own, in which infinities meet others",
        "SparseApplyRMSProp", {"T": "float", "Tindices": "int32"},
        Call(F(7), np.full(7, np.inf, np.float32), F(7), *(np.float32(v) for v in (0.1, 0.9, 0.5, 1e-3)), F(3), I(0, 1, 2)),
    ),
    Allowed(
        "ResourceScatter(Add|Sub|Mul|Div|Min|Max|Update)",
        r"Must have updates\.shape.*, not no error",
        "the peer reads beyond updates, or writes beyond rows, of other sizes",
        "ResourceScatterAdd", {}, None,
    ),
    Allowed(
        "SampleDistortedBoundingBox(V2)?",
        r"(height and width must be positive.*, not no error)|no error, not InvalidArgumentError: image height cannot",
        "an image without pixels has no crop",
        "SampleDistortedBoundingBoxV2", {"T": "int32"},
        Call(I(0, 60, 3), np.array([[[0, 0, 1, 1]]], np.float32), np.float32(0.1), seed=11, seed2=4),
    ),
    Allowed(
        "SampleDistortedBoundingBox(V2)?",
        r"output \d of step 1:",
        "the peer sets aside four numbers for each attempt, modulo 2^32",
        "SampleDistortedBoundingBoxV2", {"T": "int32"},
        Call(
            I(50, 60, 3), np.array([[[0, 0, 1, 1]]], np.float32), np.float32(0.1),
            seed=11, seed2=4, max_attempts=2**31 - 1, steps=2,
        ),
        change=r"max_attempts=\d{9,}",
    ),
    Allowed(
        "ScaleAndTranslate(Grad)?",
        r"output 0 .*(nan|inf)",
        "pixels without a weight are multiplied too by the peer",
        "ScaleAndTranslate", {"T": "float"},
        Call(np.full((1, 4, 5, 1), np.nan, np.float32), I(8, 9), np.array([2, 2], np.float32), np.array([0, -6], np.float32), kernel_type="keyscubic", antialias=False),
    ),
    Allowed(
        "SparseMatMul",
        r"-?inf\), not np\.float32\(nan\)",
        "the peer splits large numbers into parts whose products overflow both ways",
        "SparseMatMul", {"Ta": "float", "Tb": "float"},
        Call(np.full((4, 3), 3e38, np.float32), np.array([[-0.31, -2.64, 7.67, -2.02], [3.47, 3.46, -4.59, 5.71]], np.float32), transpose_a=True, transpose_b=True, b_is_sparse=True),
    ),
    Allowed(
        "Slice",
        r"not InternalError: Could not allocate ndarray",
        "the client cannot show the peer's answer",
        "Slice", {"T": "half", "Index": "int64"}, Call(np.ones((0, 3), np.float16), L(0, 1), L(0, 2**63 - 1)),
    ),
    Allowed(
        "PadV2|Pad|MirrorPad.*|Tile",
        r"too large.*, not no error",
        "the peer's sizes overflow",
        "PadV2", {"T": "uint16", "Tpaddings": "int64"},
        Call(np.ones((3, 4), np.uint16), np.full((2, 2), 2**63 - 1, np.int64), np.uint16(7)),
    ),
    Allowed(
        "(UnsortedS|SparseS)egment.*",
        r"(OOM|would have more than).*, not (no error|InvalidArgumentError)",
        "the peer takes the low half of a number of segments of 64 bits",
        "UnsortedSegmentSum", {"T": "float", "Tindices": "int32", "Tnumsegments": "int64"}, Call(F(2), I(0, 0), np.int64(2**40)),
    ),
    Allowed(
        "Stateless.*",
        r"counter must be a vector with length.*, not no error",
        "the peer reads beyond a counter of a single number",
        "StatelessRandomNormalV2", {"dtype": "float", "Tshape": "int32"},
        Call(I(3), np.array([5], np.uint64), np.array([7], np.uint64), np.int32(1)),
    ),
    Allowed(
        "SparseSegment(Sum|Mean|SqrtN)Grad",
        r"output 0 of step",
        "of no indices the peer leaves the rows as its memory was",
        "SparseSegmentSumGrad", {}, None, change=r"axis 0 of size 0|every \d is 0",
    ),
    Allowed(
        "(Resource)?ScatterNd(Add|Sub|Max|Min|Update|NonAliasingAdd)",
        r"(output|variable) 0 of step|does not index into shape",
        "the peer takes a vector of indices for a row, and reads beyond it",
        "ScatterNdAdd", {}, None, change=r"indices (without its last axis|an empty vector)",
    ),
    Allowed(
        "FusedBatchNorm(V2|V3)?",
        r"output [345] of step",
        "outside of training, and of nothing, the peer leaves what is kept for the gradient as its memory was",
        "FusedBatchNorm", {}, None, change=r"is_training=False|axis \d of size 0|every \d is 0",
    ),
    Allowed(
        "CTCLoss",
        r"output [01] of step",
        "of a sequence of nothing but blanks the peer writes before its variables' first row",
        "CTCLoss", {"T": "float"}, Call(F(6, 1, 3), L([0, 0]), I(2), I(6)),
        change=r"labels_values|axis 2 of size|every \d is",
    ),
    Allowed(
        "DepthwiseConv2dNative.*",
        r"no error, not InvalidArgumentError: Current implementation only supports equal length strides",
        "the peer has no kernel for windows that move farther on one axis",
        "DepthwiseConv2dNative", {"T": "float"},
        Call(F(1, 5, 5, 2), F(2, 3, 2, 2), strides=[1, 2, 1, 1], padding="VALID"),
    ),
    Allowed(
        "TensorStridedSliceUpdate",
        r"no error, not UnimplementedError: Unhandled input dimensions",
        "the peer has no kernel for more than eight axes",
        "TensorStridedSliceUpdate", {"T": "float", "Index": "int32"},
        Call(np.ones([1] * 8 + [2], np.float32), I(*[0] * 9), I(*[1] * 9), I(*[1] * 9), np.ones([1] * 9, np.float32)),
    ),
    Allowed(
        "SparseSlice",
        r"Expected a non-negative size, got -9223372036854775808.*, not no error",
        "a size below all others overflows in the peer",
        "SparseSlice", {"T": "float"}, Call(L([0, 1]), F(1), L(3, 4), L(0, 0), L(-(2**63), 2)),
    ),
    Allowed(
        "TopKV2?|NthElement",
        r"\((-?\d+\.\d+|nan|-?inf)\), not|nan",
        "the peer sorts and selects numbers of a whole row by an order that NaN has no place in",
        "TopKV2", {"T": "float", "Tk": "int32", "index_type": "int32"}, Call(np.array([np.nan, 3, 1, 2], np.float32), np.int32(4), sorted=True),
        change=r"input .*nan",
    ),
    Allowed(
        "Segment(Sum|Mean|Prod|Min|Max)(V2)?",
        r"ResourceExhaustedError.*, not InvalidArgumentError",
        "the number of segments overflows in the peer",
        "SegmentMean", {"T": "float", "Tindices": "int64"}, Call(F(2), L(0, 2**63 - 1)),
    ),
    Allowed(
        "RsqrtGrad",
        r"np\.float\d+\(nan\), not np\.float\d+\(0\.0\)",
        "nothing times no number is nothing to the peer",
        "RsqrtGrad", {"T": "double"}, Call(np.array(np.nan), np.array(0.0)),
    ),
    Allowed(
        "NonMaxSuppressionWithOverlaps",
        r"shape \(\d+,\), not \(\d+,\)",
        "a threshold that is no number suppresses all but the first to the peer",
        "NonMaxSuppressionWithOverlaps", {}, None,
        change="overlap_threshold .*nan",
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


def entry_for(op, said, changed=None):
    """The entry that allows what is said of an op's case; `changed`: what was changed in it, if it is no witness."""
    for entry in ALLOWED:
        is_meant = changed is None or re.search(entry.change, changed)
        if is_meant and re.fullmatch(entry.ops, op) and re.search(entry.difference, said):
            return entry
    return None
