"""Permitted differences from TensorFlow's results, with reasons. Each entry holds a call that shows the difference, and
the comparison fails if that call shows none. An entry has no call if TensorFlow would write out of bounds in it."""
import collections
import re

import numpy as np

from cases import Call

# `ops`, `difference` and `change` are regular expressions: for the op's name, for the difference that `generated.py`
# prints, and for the label of a case, which lists its changes. `change` restricts an entry to cases with such a change.
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
        "arguments that are both invalid and too large are refused before memory is allocated",
        "BroadcastTo", {"T": "uint64", "Tidx": "int32"}, Call(np.ones((2, 1, 3), np.uint64), I(1, 2, 4, 2**31 - 1)),
    ),
    Allowed(
        ".*",
        r"no error, not UnimplementedError: (Broadcast between|Substr broadcast)",
        "the peer's kernels support few alternations between broadcast and other axes",
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
        "the conversion of a value outside of the type's range is undefined, and depends on the element's position in a SIMD vector",
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
        "a difference that rounds to 0 in 16 bits times an infinity is NaN",
        "ApplyFtrl", {"T": "bfloat16"},
        Call(
            *(np.full(3, v, np.float32).astype("bfloat16") for v in (-np.inf, 0.8, 0.5, 0.02)),
            *(np.float32(v).astype("bfloat16") for v in (0.1, 0.1, 0.1, -0.5)),
        ),
    ),
    Allowed(
        "I?R?FFT[23]?D?",
        r"output 0 .*\(?0(\.0|j)\)?, not",
        "the peer does not initialise the transform of an empty input",
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
        "the peer computes a valid position from -2^63 by overflow",
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
        "the peer reads out of bounds if there are too few values or the splits are no vector, and does not check inner splits",
        "RaggedTensorToTensor", {"T": "float", "Tindex": "int64", "Tshape": "int64"},
        Call(L(-1, -1), F(3), np.float32(0), [L(0, 2, 2, 5)], row_partition_types=["ROW_SPLITS"]),
    ),
    Allowed(
        "RaggedGather",
        r"OUTPUT_RAGGED_RANK must be .*, not InternalError",
        "a wrong number of outputs is an invalid argument; the peer may crash",
        "RaggedGather", {}, None,
    ),
    Allowed(
        "RaggedTensorToSparse",
        r"output 2 of step 0: np\.int64",
        "the peer counts the rows by the first axis if the splits are no vector",
        "RaggedTensorToSparse", {"T": "float", "Tsplits": "int64"}, Call([L([0, 2, 2, 5])], F(5)),
    ),
    Allowed(
        "AvgPool(3D)?Grad",
        r"Expected grad shape .*, not no error",
        "the peer does not check the gradient's shape, and reads out of bounds",
        "AvgPool3DGrad", {"T": "float"},
        Call(I(1, 4, 4, 4, 1), F(1, 4, 4, 4, 1), ksize=[1, 1, 2, 1, 1], strides=[1] * 5, padding="VALID"),
    ),
    Allowed(
        "Fractional(Avg|Max)PoolGrad",
        r"(pooling_sequence must|which does not fit|out_backprop \[).*, not no error",
        "the peer does not check the pooling sequences against the image",
        "FractionalAvgPoolGrad", {"T": "double"},
        Call(L(2, 5, 7, 1), np.ones((2, 3, 4, 2)), L(0, 2, 3, 5), L(0, 2, 4, 6, 7), overlapping=False),
    ),
    Allowed(
        "(ResizeBicubic|ResizeBilinear|ScaleAndTranslate)Grad",
        r"(do not fit an image|must be of non-zero size).*, not no error",
        "the peer does not check the gradient's batch and channels",
        "ResizeBicubicGrad", {"T": "double"}, Call(F(2, 4, 1, 3), np.ones((2, 1, 5, 4)), align_corners=True),
    ),
    Allowed(
        "DepthwiseConv2dNativeBackprop(Filter|Input)",
        r"(Dilated rates|dilations|doesn't match computed).*, not no error",
        "the peer's gradient kernels do not check dilations, which its forward kernel refuses",
        "DepthwiseConv2dNativeBackpropFilter", {"T": "float"},
        Call(F(2, 5, 6, 3), I(2, 2, 3, 2), F(2, 2, 3, 6), strides=[1, 2, 2, 1], padding="VALID", dilations=[1, 0, 1, 1]),
    ),
    Allowed(
        "(Conv|Depthwise).*",
        r"(not np\.float(16|32|64)\(nan\)|, not nan)|step 0: (np\.float(16|32|64)\(nan\)|nan), not",
        "implementations differ in whether they multiply the zeros of the padding, which gives NaN with an infinity",
        "Conv3DBackpropFilterV2", {"T": "float"},
        Call(np.full((1, 2, 2, 2, 1), np.inf, np.float32), I(3, 3, 3, 1, 1), F(1, 2, 2, 2, 1), strides=[1] * 5, padding="SAME"),
    ),
    Allowed(
        "Adjust(Hue|Saturation)|RGBToHSV|DrawBoundingBoxes(V2)?",
        r"(output 0|images?|boxes) .*differ\)",
        "the hue of an infinite channel and the pixel of an infinite corner are undefined",
        "AdjustHue", {"T": "float"}, Call(np.full((1, 1, 3), -np.inf, np.float32), np.float32(0.3)),
    ),
    Allowed(
        "(Batch)?(Cholesky|Lu|Qr|MatrixSolve(Ls)?|MatrixTriangularSolve|MatrixInverse|Svd)(Grad)?",
        r"not invertible.*, not no error|(nan|inf|0\.0).*, not",
        "the order of operations differs, which matters for an infinity or NaN in a factorisation",
        "Qr", {"T": "float"}, Call(np.array([[np.inf, 1], [1, 2]], np.float32), full_matrices=False),
    ),
    Allowed(
        "ReverseV2|Roll|TopKV2|ArgM(ax|in)|(Conjugate)?Transpose|(Batch|Space)To(Space|Batch)(ND)?|RaggedGather|RandomCrop",
        r"(out of (valid )?range|in the range|must be at least|is not in|must be >=|must not be negative|Need k >= 0).*, not (no error|Resource)",
        "the peer truncates 64-bit axes, indices and sizes to 32 bits",
        "Roll", {"T": "int8", "Tshift": "int32", "Taxis": "int64"}, Call(np.ones((2, 3), np.int8), I(1), L(2**40)),
    ),
    Allowed(
        ".*Pool.*",
        r"must be positive.*, not no error",
        "the peer does not check windows over an empty input",
        "MaxPoolV2", {"T": "half"}, Call(np.ones((0, 4, 4, 2), np.float16), I(1, 2, 2, 1), I(1, 1, 1, -2), padding="VALID"),
    ),
    Allowed(
        ".*Pool.*",
        r"InvalidArgumentError: Sliding window.*, not UnimplementedError",
        "a window that is not positive and extends over the batch or depth has two errors, of which either may be reported",
        "MaxPoolGradV2", {"T": "float"},
        Call(F(1, 5, 5, 2), F(1, 3, 5, 2), F(1, 5, 5, 2), I(-1, -1, -1, -1), I(1, 1, 1, 1), padding="SAME"),
    ),
    Allowed(
        "CombinedNonMaxSuppression",
        r"output \d of step 0",
        "the peer takes boxes with equal scores in the order of its heap",
        "CombinedNonMaxSuppression", {},
        Call(
            np.array([[[[i, 0, i + 0.5, 1]] for i in range(7)]], np.float32), np.full((1, 7, 1), 0.5, np.float32),
            np.int32(7), np.int32(7), np.float32(0.5), np.float32(0.1), clip_boxes=False,
        ),
        r"scores|every|boxes",
    ),
    Allowed(
        "StatelessRandomBinomial",
        r"no number can be drawn with these parameters.*, not no error",
        "the peer draws from an infinite number of trials, mostly for ever",
        "StatelessRandomBinomial", {"S": "int32", "Tseed": "int32", "T": "double", "dtype": "float"},
        Call(I(1), I(0, 4), np.float64(np.inf), np.float64(0.2)), r"counts .*(inf|e\+38|nan)|probs .*nan",
    ),
    Allowed(
        "KmeansPlusPlusInitialization",
        r"output 0 of step 0",
        "distances from points at infinity are NaN, and the choice depends on comparisons with NaN",
        "KmeansPlusPlusInitialization", {}, None, r"points .*(inf|nan|e\+38)",
    ),
    Allowed(
        "RandomIndexShuffle",
        r"rounds must be an even number of at least 4.*, not no error",
        "the peer reads beyond its keys if there are fewer rounds or an odd number",
        "RandomIndexShuffle", {}, None,
    ),
    Allowed(
        "NearestNeighbors",
        r"np\.float32\(inf\), not np\.float32\(nan\)|output 0 of step 0",
        "the peer subtracts products from norms, which overflow",
        "NearestNeighbors", {}, Call(np.float32([[3e38]]), np.float32([[1e38]]), np.int64(1)), r"inf|3e\+38",
    ),
    Allowed(
        "RaggedFillEmptyRows",
        r"output 0 of step 0: shape \(0,\), not \(0, 1\)",
        "the peer's row numbers are a matrix if there are no rows",
        "RaggedFillEmptyRows", {"T": "float"}, Call(L(), F(0), np.int64(0), F()),
    ),
    Allowed(
        "(Sparse|Ragged)Bincount",
        r"`weights` must have an element for each value.*, not no error",
        "the peer reads out of bounds if there are fewer weights than values",
        "RaggedBincount", {"Tidx": "int64", "T": "float"}, Call(L(0, 2), L(1, 2), np.int64(4), F(1)),
    ),
    Allowed(
        ".*CountSparseOutput",
        r"np\.int64\((9223372036854775807|2147483648)\), not",
        "the number after the largest value overflows in the peer",
        "RaggedCountSparseOutput", {"T": "int64", "output_type": "float"}, Call(L(0, 1), L(2**63 - 1), F(0), binary_output=False),
    ),
    Allowed(
        "StringNGrams",
        r"First split value must be 0.*, not no error",
        "the peer checks the lower 32 bits of splits, and reads out of bounds",
        "StringNGrams", {"Tsplits": "int64"}, None,
    ),
    Allowed(
        "SparseConcat|EditDistance|SetSize",
        r"InvalidArgumentError.*, not (no error|InternalError: (Encountered overflow|Got an inner product|indices|Invalid dim_size))",
        "an invalid shape is an invalid argument",
        "SparseConcat", {"T": "float"}, Call([L([0, 1])] * 2, [F(1)] * 2, [L(2, 3), L(2, -1)], concat_dim=-1),
    ),
    Allowed(
        "SparseCross.*|RaggedCross",
        r"(InvalidArgumentError|Resource).*, not (no error|InvalidArgumentError)",
        "the peer accepts columns that are no sparse tensors, and writes out of bounds for missing rows",
        "SparseCrossV2", {}, None,
    ),
    Allowed(
        "BatchNormWithGlobalNormalization(Grad)?",
        r"(must be 1-dimensional with|must have the same shape).*, not no error",
        "the peer reads out of bounds if vectors are too short for the channels",
        "BatchNormWithGlobalNormalization", {"T": "float"},
        Call(F(1, 2, 2, 3), F(4), F(3), F(3), F(3), variance_epsilon=0.01, scale_after_normalization=True),
    ),
    Allowed(
        "ResourceGather",
        r"(batch_dims|the batch dimensions|is not in).*, not no error",
        "the peer does not check batch sizes, and checks indices only after adding the offset of their batch",
        "ResourceGather", {"dtype": "float", "Tindices": "int32"},
        Call(F(2, 5), np.array([[0, 1], [2, -2]], np.int32), batch_dims=1),
    ),
    Allowed(
        "(Sparse|Resource|ResourceSparse)?ApplyCenteredRMSProp",
        r"np\.float16|not -?\d+\.\d+ at|bfloat16",
        "a variance that is the difference of two nearly equal numbers depends on rounding",
        "ApplyCenteredRMSProp", {"T": "half"},
        Call(
            *(np.array(v, np.float16) for v in ([0, -0.85], [-0.86, -0.58], [0.63, 1.16], [0.37, -0.46])),
            *(np.float16(v) for v in (0.13, 0.06, 0.58, 1e-3)), np.array([-1.26, -1.96], np.float16),
        ),
    ),
    Allowed(
        "CTCBeamSearchDecoder",
        r"output \d+ of step",
        "equally likely paths may come in any order",
        "CTCBeamSearchDecoder", {"T": "double"},
        Call(np.full((6, 2, 4), 0.5), I(6, 5), beam_width=20, top_paths=3),
    ),
    Allowed(
        "LRN(Grad)?",
        r"output 0 .*(nan|inf|e\+3\d)",
        "the peer's running sum of squares stays NaN after the first NaN",
        "LRN", {"T": "float"}, Call(np.array([[[[np.inf, 1, 2, 3, 4, 5, 6, 7]]]], np.float32), depth_radius=1),
    ),
    Allowed(
        "Roll|(Batch)?MatrixBandPart",
        r"output 0 of step",
        "the peer truncates a 64-bit shift or number of diagonals to 32 bits",
        "MatrixBandPart", {"T": "float", "Tindex": "int64"}, Call(F(3, 3), np.int64(-(2**63)), np.int64(0)),
        change=r"(shift|num_lower|num_upper) \w+ -?\d{10,}",
    ),
    Allowed(
        "MaxPool3D.*",
        r"nan",
        "the peer's maximum of a sequence with NaN depends on the last compared pair",
        "MaxPool3D", {"T": "bfloat16"},
        Call(np.full((1, 2, 1, 1, 1), np.nan, np.float32).astype("bfloat16"), ksize=[1] * 5, strides=[1] * 5, padding="VALID"),
    ),
    Allowed(
        "RandomGammaGrad",
        r"not np\.float(32|64)\(-?0\.0\)",
        "the peer returns 0 as derivative if the density underflows",
        "RandomGammaGrad", {"T": "double"}, Call(np.array(1.5), np.array(3e38)),
    ),
    Allowed(
        "RaggedRange",
        r"np\.int\d+\(1\), not np\.int\d+\(0\)",
        "the peer treats subnormal numbers as 0",
        "RaggedRange", {"T": "float", "Tsplits": "int64"}, Call(np.float32(0), np.array([1], np.float32), np.float32(3e38)),
    ),
    Allowed(
        "Rng(ReadAnd)?Skip",
        r"variable 0 of step \d: np\.int64",
        "the peer loses the carry between the halves of a counter when it skips by nearly 2^64",
        "RngSkip", {}, Call(L(-1, -1, 1), np.int64(1), np.int64(-1)),
        change=r"(delta|resource) (all|negated|first|last)",
    ),
    Allowed(
        "Parse(Single)?Example(V2)?",
        r"Could not parse example input.*, not no error",
        "the peer ignores a field that is longer than the message",
        "ParseSingleExample", {"Tdense": "string", "sparse_types": "float"},
        Call(TEXT(b" 12 "), [TEXT([b"d"])], num_sparse=1, sparse_keys=["s"], dense_keys=["d"], dense_shapes=[[1]], sparse_types=["float"]),
    ),
    Allowed(
        "Qr",
        r"output [01] of step",
        "columns that are not determined by a rank-deficient matrix are arbitrary",
        "Qr", {"T": "double"}, Call(np.ones((3, 3)), full_matrices=False),
        change="input (all|twice|every)",
    ),
    Allowed(
        "QuantizeV2",
        r"np\.u?int(8|16|32)\(-?\d+\), not np\.u?int",
        "the conversion of NaN is undefined, and depends on the element's position in a SIMD vector",
        "QuantizeV2", {"T": "qint8"}, Call(np.full((40,), np.nan, np.float32), np.float32(-2), np.float32(2)),
        change="input .*nan",
    ),
    Allowed(
        "Quantized(Add|Mul)",
        r"np\.int32\(-?\d+\), not np\.int32",
        "the peer's kernels broadcast only scalars and trailing axes, and repeat other operands wrongly",
        "QuantizedMul", {"T1": "quint8", "T2": "quint8", "Toutput": "qint32"},
        Call(np.arange(12, dtype=np.uint8).reshape(3, 4), np.arange(3, dtype=np.uint8).reshape(3, 1), F()[()], 2 * F()[()], F()[()], 2 * F()[()]),
        change="axis|twice|rank|every|alike",
    ),
    Allowed(
        "QuantizedMatMul",
        r"np\.int32\(0\), not np\.int32",
        "the peer does not initialise the product of matrices without columns and rows",
        "QuantizedMatMul", {}, None, change="(axis|every).* (is|of size) 0",
    ),
    Allowed(
        "QuantizedConcat",
        r"np\.(uint8|int32)\(-?\d+\), not np\.(uint8|int32)",
        "the peer converts values after an empty tensor with the range of the tensor before",
        "QuantizedConcat", {"T": "quint8"},
        Call(np.int32(0), [np.ones(0, np.uint8), np.full(3, 100, np.uint8)], [F()[()], 0 * F()[()]], [2 * F()[()], 5 * F()[()]]),
        change=r"0|empty",
    ),
    Allowed(
        "RequantizePerChannel",
        r"no error, not AbortedError",
        "the peer's library refuses images without channels",
        "RequantizePerChannel", {"T": "qint32", "out_type": "quint8"},
        Call(np.ones((2, 0, 4, 0), np.int32), F(0), F(0), -F()[()], F()[()]),
    ),
    Allowed(
        "UniformQuantized.*|UniformRequantize",
        r"np\.(int(8|32)|float32)\(.*, not np\.",
        "zero points out of range and NaN are undefined",
        "UniformQuantizedDotHybrid", {"Tlhs": "float", "Trhs": "qint8", "Tout": "float"}, None,
        change=r"zero_points|nan",
    ),
    Allowed(
        "Quantize.*|Dequantize|Requanti.*",
        r"np\.(u?int(8|16|32)|float32)\(.*, not np\.",
        "conversions with ranges that are not finite, or whose ends are in the wrong order, are undefined",
        "QuantizedRelu6", {"Tinput": "qint32", "out_type": "qint32"}, Call(np.ones(3, np.int32), np.float32(np.nan), np.float32(1)),
        change=r"((min|max)(_\w+)?|\w+_(min|max)|input_m\w+)(\[\d\])? (all|first|last|negated)",
    ),
    Allowed(
        "QuantizedResizeBilinear",
        r"no error, not InternalError: Missing 1-th output",
        "the peer does not output the range of a batch without images",
        "QuantizedResizeBilinear", {"T": "float"}, Call(F(0, 3, 4, 1), I(2, 2), F()[()], 2 * F()[()]),
    ),
    Allowed(
        "QuantizeAndDequantizeV[24]",
        r"no error, not InvalidArgumentError: input_m\w+ must be a scalar",
        "the peer does not implement a separate range for each slice, which it documents",
        "QuantizeAndDequantizeV2", {"T": "float"},
        Call(F(2, 3), F(3), F(3), signed_input=True, num_bits=8, range_given=True, axis=1),
    ),
    Allowed(
        "QuantizeAndDequantizeV3",
        r"no error, not InvalidArgumentError: Axis requested is larger",
        "the peer refuses a scalar, although no axis is requested",
        "QuantizeAndDequantizeV3", {"T": "float"}, Call(np.float32(1), np.float32(0), np.float32(1), np.int32(8), range_given=False),
    ),
    Allowed(
        "(Resource)?Apply(Adadelta|AdamWithAmsgrad)",
        r"do not have the same shape.*, not no error",
        "the peer does not check the shape of the last slot, and reads out of bounds",
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
        "an update of rows without elements is valid",
        "SparseApplyFtrlV2", {"T": "float", "Tindices": "int32"},
        Call(F(5, 0), F(5, 0), F(5, 0), F(0, 0), I(), *(np.float32(v) for v in (0.1, 0, 0, 0, -0.5))),
    ),
    Allowed(
        "(Resource)?SparseApply.*",
        r"(nan|inf)",
        "the peer's sparse kernels use other formulas, in which infinities combine differently",
        "SparseApplyRMSProp", {"T": "float", "Tindices": "int32"},
        Call(F(7), np.full(7, np.inf, np.float32), F(7), *(np.float32(v) for v in (0.1, 0.9, 0.5, 1e-3)), F(3), I(0, 1, 2)),
    ),
    Allowed(
        "ResourceScatter(Add|Sub|Mul|Div|Min|Max|Update)",
        r"Must have updates\.shape.*, not no error",
        "the peer reads or writes out of bounds if updates and rows have different sizes",
        "ResourceScatterAdd", {}, None,
    ),
    Allowed(
        "(Stateless)?SampleDistortedBoundingBox(V2)?",
        r"(height and width must be positive.*, not no error)|no error, not InvalidArgumentError: image height cannot",
        "a crop of an image without pixels is invalid",
        "SampleDistortedBoundingBoxV2", {"T": "int32"},
        Call(I(0, 60, 3), np.array([[[0, 0, 1, 1]]], np.float32), np.float32(0.1), seed=11, seed2=4),
    ),
    Allowed(
        "(Stateless)?SampleDistortedBoundingBox(V2)?",
        r"output \d of step 1:",
        "the peer reserves four random numbers for each attempt, modulo 2^32",
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
        "the peer also multiplies pixels whose weight is 0",
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
        "the client cannot convert the peer's result",
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
        "the peer truncates a 64-bit number of segments to 32 bits",
        "UnsortedSegmentSum", {"T": "float", "Tindices": "int32", "Tnumsegments": "int64"}, Call(F(2), I(0, 0), np.int64(2**40)),
    ),
    Allowed(
        "Stateless.*",
        r"counter must be a vector with length.*, not no error",
        "the peer reads out of bounds if the counter is a single number",
        "StatelessRandomNormalV2", {"dtype": "float", "Tshape": "int32"},
        Call(I(3), np.array([5], np.uint64), np.array([7], np.uint64), np.int32(1)),
    ),
    Allowed(
        "SparseSegment(Sum|Mean|SqrtN)Grad",
        r"output 0 of step",
        "the peer does not initialise the rows if there are no indices",
        "SparseSegmentSumGrad", {}, None, change=r"axis 0 of size 0|every \d is 0",
    ),
    Allowed(
        "(Resource)?ScatterNd(Add|Sub|Max|Min|Update|NonAliasingAdd)",
        r"(output|variable) 0 of step|does not index into shape",
        "the peer interprets a vector of indices as a row, and reads out of bounds",
        "ScatterNdAdd", {}, None, change=r"indices (without its last axis|an empty vector)",
    ),
    Allowed(
        "FusedBatchNorm(V2|V3)?",
        r"output [345] of step",
        "the peer does not initialise the outputs for the gradient outside of training and for empty inputs",
        "FusedBatchNorm", {}, None, change=r"is_training=False|axis \d of size 0|every \d is 0",
    ),
    Allowed(
        "CTCLoss",
        r"output [01] of step",
        "for a sequence of blanks alone, the peer writes before the first row of its variables",
        "CTCLoss", {"T": "float"}, Call(F(6, 1, 3), L([0, 0]), I(2), I(6)),
        change=r"labels_values|axis 2 of size|every \d is",
    ),
    Allowed(
        "DepthwiseConv2dNative.*",
        r"no error, not InvalidArgumentError: Current implementation only supports equal length strides",
        "the peer has no kernel for windows whose strides differ",
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
        "the smallest 64-bit integer as a size overflows in the peer",
        "SparseSlice", {"T": "float"}, Call(L([0, 1]), F(1), L(3, 4), L(0, 0), L(-(2**63), 2)),
    ),
    Allowed(
        "TopKV2?|NthElement",
        r"\((-?\d+\.\d+|nan|-?inf)\), not|nan",
        "the peer sorts and selects the numbers of a row by an order that is undefined for NaN",
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
        "0 times NaN is 0 in the peer",
        "RsqrtGrad", {"T": "double"}, Call(np.array(np.nan), np.array(0.0)),
    ),
    Allowed(
        "NonMaxSuppressionWithOverlaps",
        r"shape \(\d+,\), not \(\d+,\)",
        "a NaN as threshold suppresses all boxes except the first in the peer",
        "NonMaxSuppressionWithOverlaps", {}, None,
        change="overlap_threshold .*nan",
    ),
    Allowed(
        "(BlockLSTM|LSTMBlock).*",
        r"InvalidArgumentError: (Rank of \w+|\w+\.dim_size).*, not no error",
        "operands of wrong sizes are refused; the peer reads beyond their ends",
        "LSTMBlockCell", {"T": "float"}, None,
    ),
    Allowed(
        "TensorSummaryV2",
        r"is no SummaryMetadata.*, not no error",
        "bytes that are no valid message are refused",
        "TensorSummaryV2", {"T": "bool"}, Call(TEXT(b"tag"), np.array(True), TEXT(b" 12 ")),
    ),
    Allowed(
        "SobolSample",
        r"np\.float\d+\(\d\S*\), not np\.float\d+\(-",
        "the unit of coordinates overflows in the peer from point 2^30 on, so that they are negative",
        "SobolSample", {"dtype": "double"}, Call(np.int32(2), np.int32(4), np.int32(2**30 + 5)),
    ),
    Allowed(
        "SdcaOptimizer(V2)?",
        r"InvalidArgumentError: (dense_features at index|sparse_feature_values has|\d+ sparse_indices for).*, not",
        "operands that are too short are refused; the peer reads beyond their ends",
        "SdcaOptimizer", {}, None,
    ),
    Allowed(
        ".*",
        r"not UnicodeDecodeError",
        "the client cannot decode the peer's message, which contains the invalid bytes",
        "RegexReplace", {}, Call(TEXT([b"a"]), TEXT(b"\xff\xfe"), TEXT(b"b"), replace_global=True),
    ),
)


def entry_for(op, found, changed=None):
    """The entry that permits the difference `found` in a case of an op, or None. `changed`: the case's label, or None for
    the call of an entry."""
    for entry in ALLOWED:
        is_meant = changed is None or re.search(entry.change, changed)
        if is_meant and re.fullmatch(entry.ops, op) and re.search(entry.difference, found):
            return entry
    return None
