//! Gradient cases (see `gradient_cases`) of ops for neural networks and images.

use crate::gradient_cases::{Case, Input, case, ints};
use graph::{Shape, Tensor};

fn doubles(values: &[f64], dims: &[usize]) -> Input {
    let shape = Shape::new(dims).unwrap_or_default();
    Input::Fixed(Tensor::from_slice(values, shape).unwrap_or_else(|e| panic!("{e}")))
}

fn floats(values: &[f32], dims: &[usize]) -> Input {
    let shape = Shape::new(dims).unwrap_or_default();
    Input::Fixed(Tensor::from_slice(values, shape).unwrap_or_else(|e| panic!("{e}")))
}

/// Returns the gradient cases of this module.
pub(crate) fn all() -> Vec<Case> {
    let mut out = convolutions();
    out.extend(dilations());
    out.extend(pools());
    out.extend(normalisations());
    out.extend(spaces());
    out.extend(images());
    out.extend(others());
    out
}

fn convolutions() -> Vec<Case> {
    let mut out = Vec::new();
    for (stride, padding) in [(1i64, "SAME"), (2, "VALID")] {
        let rows = if stride == 1 { 4 } else { 1 };
        let attrs = |c: Case| c.attr("strides", vec![1, stride, stride, 1]).attr("padding", padding);
        let (x, w, y) = ([1, 4, 4, 2], [3, 3, 2, 2], [1, rows, rows, 4]);
        let op = |name| attrs(case(name));
        out.push(op("DepthwiseConv2dNative").x(&x, -2.0, 2.0).x(&w, -1.0, 1.5));
        out.push(op("DepthwiseConv2dNativeBackpropInput").c(&[1, 4, 4, 2]).x(&w, -2.0, 2.0).x(&y, -1.0, 1.5));
        out.push(
            op("DepthwiseConv2dNativeBackpropFilter").x(&x, -2.0, 2.0).c(&[3, 3, 2, 2]).x(&y, -1.0, 1.5),
        );
        let attrs = |c: Case| c.attr("strides", vec![1, stride, stride, stride, 1]).attr("padding", padding);
        let rows = if stride == 1 { 3 } else { 1 };
        let (x, w, y) = ([1, 3, 3, 3, 1], [2, 2, 2, 1, 2], [1, rows, rows, rows, 2]);
        let op = |name| attrs(case(name));
        out.push(op("Conv3D").x(&x, -2.0, 2.0).x(&w, -1.0, 1.5));
        out.push(op("Conv3DBackpropInputV2").c(&[1, 3, 3, 3, 1]).x(&w, -2.0, 2.0).x(&y, -1.0, 1.5));
        out.push(op("Conv3DBackpropFilterV2").x(&x, -2.0, 2.0).c(&[2, 2, 2, 1, 2]).x(&y, -1.0, 1.5));
    }
    out
}

fn dilations() -> Vec<Case> {
    let ones = || vec![1i64, 1, 1, 1];
    let dilation = case("Dilation2D").attr("strides", ones()).attr("rates", ones()).attr("padding", "SAME");
    vec![dilation.x(&[1, 4, 4, 2], -2.0, 2.0).x(&[2, 2, 2], -1.0, 1.5)]
}

fn pools() -> Vec<Case> {
    let volumes = |op| {
        case(op)
            .attr("ksize", vec![1i64, 2, 2, 2, 1])
            .attr("strides", vec![1i64, 1, 2, 2, 1])
            .attr("padding", "VALID")
    };
    // Values increase along all axes, so each window's maximum is its last element.
    let rising: Vec<f64> = (0..16).map(f64::from).collect();
    let rising_single: Vec<f32> = (0..16).map(|v| v as f32).collect();
    let pooled = [5.0, 7.0, 13.0, 15.0];
    let windows = |c: Case| c.c(&[1, 2, 2, 1]).c(&[1, 2, 2, 1]).attr("padding", "VALID");
    let mut out = vec![
        volumes("AvgPool3D").x(&[1, 3, 4, 4, 1], -2.0, 2.0).single(),
        volumes("AvgPool3DGrad").c(&[1, 3, 4, 4, 1]).x(&[1, 2, 2, 2, 1], -2.0, 2.0).single(),
        volumes("MaxPool3D").x(&[1, 3, 4, 4, 1], -2.0, 2.0).single(),
        windows(case("MaxPoolV2").x(&[1, 4, 4, 1], -2.0, 2.0)),
        case("MaxPoolWithArgmax")
            .x(&[1, 4, 4, 1], -2.0, 2.0)
            .attr("ksize", vec![1i64, 2, 2, 1])
            .attr("strides", vec![1i64, 2, 2, 1])
            .attr("padding", "SAME")
            .first_output(),
    ];
    for (op, rows) in [("MaxPoolGradV2", 2), ("MaxPoolGradGradV2", 4)] {
        let images = case(op).arg(doubles(&rising, &[1, 4, 4, 1])).arg(doubles(&pooled, &[1, 2, 2, 1]));
        out.push(windows(images.x(&[1, rows, rows, 1], -2.0, 2.0)));
    }
    for (op, rows) in [("MaxPool3DGrad", 2), ("MaxPool3DGradGrad", 4)] {
        out.push(
            case(op)
                .arg(floats(&rising_single, &[1, 1, 4, 4, 1]))
                .arg(floats(&pooled.map(|v| v as f32), &[1, 1, 2, 2, 1]))
                .x(&[1, 1, rows, rows, 1], -2.0, 2.0)
                .attr("ksize", vec![1i64, 1, 2, 2, 1])
                .attr("strides", vec![1i64, 1, 2, 2, 1])
                .attr("padding", "VALID")
                .single(),
        );
    }
    for op in ["FractionalMaxPool", "FractionalAvgPool"] {
        out.push(
            case(op)
                .x(&[1, 5, 7, 1], -2.0, 2.0)
                .attr("pooling_ratio", vec![1.0f32, 1.44, 1.73, 1.0])
                .attr("deterministic", true)
                .attr("seed", 5i64)
                .attr("seed2", 7i64)
                .first_output(),
        );
    }
    out
}

fn normalisations() -> Vec<Case> {
    let mut out = Vec::new();
    for op in ["FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"] {
        for training in [true, false] {
            for format in ["NHWC", "NCHW"] {
                let channels = if format == "NHWC" { [2, 2, 3, 2] } else { [2, 2, 2, 3] };
                let moments: (&[f32], &[f32]) =
                    if training { (&[], &[]) } else { (&[0.2, -0.3], &[0.8, 1.3]) };
                out.push(
                    case(op)
                        .x(&channels, -2.0, 2.0)
                        .x(&[2], 0.5, 1.5)
                        .x(&[2], -0.5, 0.5)
                        .arg(floats(moments.0, &[moments.0.len()]))
                        .arg(floats(moments.1, &[moments.1.len()]))
                        .attr("is_training", training)
                        .attr("data_format", format)
                        .attr("epsilon", 0.1f32)
                        .single()
                        .first_output(),
                );
            }
        }
    }
    out.push(case("LRN").x(&[1, 2, 2, 4], 0.5, 2.0).attr("depth_radius", 1i64).single());
    for scaled in [true, false] {
        out.push(
            case("BatchNormWithGlobalNormalization")
                .x(&[2, 2, 2, 2], -2.0, 2.0)
                .x(&[2], -0.5, 0.5)
                .x(&[2], 0.5, 1.5)
                .x(&[2], -0.5, 0.5)
                .x(&[2], 0.5, 1.5)
                .attr("variance_epsilon", 0.1f32)
                .attr("scale_after_normalization", scaled),
        );
    }
    out
}

fn spaces() -> Vec<Case> {
    let matrix = |v: &[i32], dims: &[usize]| Input::Constant(ints(v, dims));
    vec![
        case("SpaceToBatchND").x(&[1, 3, 4], -2.0, 2.0).c(&[2, 2]).arg(matrix(&[1, 0, 0, 0], &[2, 2])),
        case("BatchToSpaceND").x(&[4, 2, 2], -2.0, 2.0).c(&[2, 2]).arg(matrix(&[1, 0, 0, 0], &[2, 2])),
        case("SpaceToBatch")
            .x(&[1, 3, 4, 1], -2.0, 2.0)
            .arg(matrix(&[1, 0, 0, 0], &[2, 2]))
            .attr("block_size", 2i64),
        case("BatchToSpace")
            .x(&[4, 2, 2, 1], -2.0, 2.0)
            .arg(matrix(&[1, 0, 0, 0], &[2, 2]))
            .attr("block_size", 2i64),
    ]
}

fn images() -> Vec<Case> {
    let mut out = Vec::new();
    for centers in [false, true] {
        for op in ["ResizeBilinear", "ResizeBicubic", "ResizeNearestNeighbor"] {
            let x = case(op).x(&[1, 3, 4, 2], -2.0, 2.0).c(&[5, 3]).attr("half_pixel_centers", centers);
            out.push(x.single());
        }
    }
    out.push(
        case("ScaleAndTranslate")
            .x(&[1, 3, 4, 1], -2.0, 2.0)
            .c(&[5, 3])
            .arg(floats(&[1.5, 0.7], &[2]))
            .arg(floats(&[0.1, -0.2], &[2]))
            .attr("kernel_type", "triangle")
            .single(),
    );
    out.push(
        case("CropAndResize")
            .x(&[1, 4, 5, 2], -2.0, 2.0)
            .x(&[2, 4], 0.15, 0.85)
            .arg(Input::Fixed(ints(&[0, 0], &[2])))
            .c(&[2, 3])
            .single(),
    );
    out
}

fn others() -> Vec<Case> {
    let labels: Vec<i64> = vec![0, 0, 0, 1, 1, 0];
    let label_indices = Tensor::from_slice(&labels, Shape::new(&[3, 2]).unwrap_or_default());
    vec![
        case("CTCLoss")
            .x(&[4, 2, 3], -1.0, 1.0)
            .arg(Input::Fixed(label_indices.unwrap_or_else(|e| panic!("{e}"))))
            .k(&[0, 1, 0])
            .k(&[4, 3])
            .first_output(),
        case("NthElement").x(&[2, 4], -2.0, 2.0).i(1),
        case("NthElement").x(&[2, 4], -2.0, 2.0).i(0).attr("reverse", true),
    ]
}
