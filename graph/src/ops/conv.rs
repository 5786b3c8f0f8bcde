//! Convolutions over images and volumes, and their gradients.

use super::window::{DataFormat, Padding, ReadAttr, Window, positive};
use super::{Gradient, OpDef};
use crate::attr::AttrValue;
use crate::builder::{Call, Forward, Scope};
use crate::error::{Code, Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape, Shape};
use smallvec::SmallVec;

pub(super) const STRIDES: &str = "strides: list(int)";
const CUDNN: &str = "use_cudnn_on_gpu: bool = true";
pub(super) const PADDING: &str = "padding: {'SAME', 'VALID', 'EXPLICIT'}";
pub(super) const EXPLICIT: &str = "explicit_paddings: list(int) = []";
const FORMAT: &str = "data_format: {'NHWC', 'NCHW'} = 'NHWC'";
pub(super) const DILATIONS: &str = "dilations: list(int) = [1, 1, 1, 1]";
const FLOATS: &str = "T: {half, bfloat16, float, double}";
const FLOATS_AND_INT: &str = "T: {half, bfloat16, float, double, int32}";
const DEPTHWISE: &[&str] = &[FLOATS, STRIDES, PADDING, EXPLICIT, FORMAT, DILATIONS];
const STRIDES_3D: &str = "strides: list(int) >= 5";
const PADDING_3D: &str = "padding: {'SAME', 'VALID'}";
const FORMAT_3D: &str = "data_format: {'NDHWC', 'NCDHW'} = 'NDHWC'";
const DILATIONS_3D: &str = "dilations: list(int) = [1, 1, 1, 1, 1]";

const FORWARD: OpDef = OpDef { inputs: &["input: T", "filter: T"], outputs: &["output: T"], ..OpDef::NEW };
const OF_INPUT: OpDef = OpDef {
    inputs: &["input_sizes: int32", "filter: T", "out_backprop: T"],
    outputs: &["output: T"],
    ..OpDef::NEW
};
const OF_FILTER: OpDef = OpDef {
    inputs: &["input: T", "filter_sizes: int32", "out_backprop: T"],
    outputs: &["output: T"],
    ..OpDef::NEW
};

/// The names of three ops: a convolution, its gradient with respect to the input, and its gradient with respect to the
/// filter.
struct ConvOps([&'static str; 3]);

const IMAGES: ConvOps = ConvOps(["Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"]);
const DEPTHS: ConvOps = ConvOps([
    "DepthwiseConv2dNative",
    "DepthwiseConv2dNativeBackpropInput",
    "DepthwiseConv2dNativeBackpropFilter",
]);
const VOLUMES: ConvOps = ConvOps(["Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"]);

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: IMAGES.0[0],
        attrs: &[FLOATS_AND_INT, STRIDES, CUDNN, PADDING, EXPLICIT, FORMAT, DILATIONS],
        infer: infer_images,
        gradient: Gradient::Defined(|s, f, dy| IMAGES.forward_grad(s, f, dy)),
        ..FORWARD
    },
    OpDef {
        name: IMAGES.0[1],
        attrs: &[FLOATS_AND_INT, STRIDES, CUDNN, PADDING, EXPLICIT, FORMAT, DILATIONS],
        infer: |infer| infer_input(infer, &Conv::of_gradient_of_images(infer)?),
        gradient: Gradient::Defined(|s, f, d| IMAGES.input_grad(s, f, d)),
        ..OF_INPUT
    },
    OpDef {
        name: IMAGES.0[2],
        attrs: &[FLOATS, STRIDES, CUDNN, PADDING, EXPLICIT, FORMAT, DILATIONS],
        infer: |infer| infer_filter(infer, 4),
        gradient: Gradient::Defined(|s, f, d| IMAGES.filter_grad(s, f, d)),
        ..OF_FILTER
    },
    OpDef {
        name: DEPTHS.0[0],
        attrs: DEPTHWISE,
        infer: |infer| infer_forward(infer, &Conv::of_gradient_of_images(infer)?, true),
        gradient: Gradient::Defined(|s, f, dy| DEPTHS.forward_grad(s, f, dy)),
        ..FORWARD
    },
    OpDef {
        name: DEPTHS.0[1],
        attrs: DEPTHWISE,
        infer: |infer| infer_input(infer, &Conv::of_gradient_of_images(infer)?),
        gradient: Gradient::Defined(|s, f, d| DEPTHS.input_grad(s, f, d)),
        ..OF_INPUT
    },
    OpDef {
        name: DEPTHS.0[2],
        attrs: DEPTHWISE,
        infer: |infer| infer_filter(infer, 4),
        gradient: Gradient::Defined(|s, f, d| DEPTHS.filter_grad(s, f, d)),
        ..OF_FILTER
    },
    OpDef {
        name: VOLUMES.0[0],
        attrs: &[FLOATS, STRIDES_3D, PADDING_3D, FORMAT_3D, DILATIONS_3D],
        infer: |infer| infer_forward(infer, &Conv::of_volumes(infer)?, false),
        gradient: Gradient::Defined(|s, f, dy| VOLUMES.forward_grad(s, f, dy)),
        ..FORWARD
    },
    OpDef {
        name: "Conv3DBackpropInput",
        inputs: &["input: T", "filter: T", "out_backprop: T"],
        outputs: &["output: T"],
        attrs: &["T: {half, float, double}", STRIDES_3D, PADDING_3D, DILATIONS_3D],
        infer: |infer| {
            let shape = infer.input_of_rank(0, 5)?;
            infer.set(0, shape);
            Ok(())
        },
        ..OpDef::NEW
    },
    OpDef {
        name: "Conv3DBackpropFilter",
        inputs: &["input: T", "filter: T", "out_backprop: T"],
        outputs: &["output: T"],
        attrs: &["T: {half, float, double}", STRIDES_3D, PADDING_3D, DILATIONS_3D],
        infer: |infer| {
            let shape = infer.input_of_rank(1, 5)?;
            infer.set(0, shape);
            Ok(())
        },
        ..OpDef::NEW
    },
    OpDef {
        name: "FusedPadConv2D",
        inputs: &["input: T", "paddings: int32", "filter: T"],
        outputs: &["output: T"],
        attrs: &[
            "T: {half, bfloat16, float, double}",
            "mode: {'REFLECT', 'SYMMETRIC'}",
            "strides: list(int)",
            "padding: {'SAME', 'VALID'}",
        ],
        infer: |infer| infer_fused(infer, 2),
        ..OpDef::NEW
    },
    OpDef {
        name: "FusedResizeAndPadConv2D",
        inputs: &["input: T", "size: int32", "paddings: int32", "filter: T"],
        outputs: &["output: T"],
        attrs: &[
            "T: {half, float, double}",
            "resize_align_corners: bool = false",
            "mode: {'REFLECT', 'SYMMETRIC'}",
            "strides: list(int)",
            "padding: {'SAME', 'VALID'}",
        ],
        infer: |infer| infer_fused(infer, 3),
        ..OpDef::NEW
    },
    OpDef {
        name: "Conv",
        inputs: &["input: T", "filter: T"],
        outputs: &["output: T"],
        attrs: &[
            FLOATS_AND_INT,
            "strides: list(int)",
            "padding: {'SAME', 'VALID', 'EXPLICIT'}",
            "explicit_paddings: list(int) = []",
            "data_format: {'CHANNELS_FIRST', 'CHANNELS_LAST'} = 'CHANNELS_LAST'",
            "dilations: list(int) = []",
            "batch_dims: int = 1",
            "groups: int = 1",
        ],
        infer: super::unknown_shapes,
        ..OpDef::NEW
    },
    OpDef {
        name: VOLUMES.0[1],
        inputs: &["input_sizes: Tshape", "filter: T", "out_backprop: T"],
        attrs: &[FLOATS, STRIDES_3D, PADDING_3D, FORMAT_3D, DILATIONS_3D, "Tshape: {int32, int64} = int32"],
        infer: |infer| infer_input(infer, &Conv::of_volumes(infer)?),
        gradient: Gradient::Defined(|s, f, d| VOLUMES.input_grad(s, f, d)),
        ..OF_INPUT
    },
    OpDef {
        name: VOLUMES.0[2],
        attrs: &[FLOATS, STRIDES_3D, PADDING_3D, FORMAT_3D, DILATIONS_3D],
        infer: |infer| infer_filter(infer, 5),
        gradient: Gradient::Defined(|s, f, d| VOLUMES.filter_grad(s, f, d)),
        ..OF_FILTER
    },
];

/// Infers the batch and the channels of a convolution of padded images; `filter` is the input with the filter.
fn infer_fused(infer: &mut Infer<'_>, filter: usize) -> Result<()> {
    let (images, filter) = (infer.input_of_rank(0, 4)?, infer.input_of_rank(filter, 4)?);
    infer.set(0, [images.dim(0), None, None, filter.dim(3)]);
    Ok(())
}

/// The attributes of a convolution over images or volumes. An image is treated as a volume with one plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv {
    /// The strides over planes, rows and columns.
    pub strides: [usize; 3],
    pub dilations: [usize; 3],
    pub padding: Padding,
    pub format: DataFormat,
    /// True if the data are volumes, which have a plane axis in addition to rows and columns.
    pub volumes: bool,
}

/// The sizes of a convolution's input, filter and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvSizes {
    pub batch: usize,
    pub planes: Window,
    pub rows: Window,
    pub columns: Window,
    pub in_channels: usize,
    /// The number of input channels that a filter reads: `in_channels / groups`.
    pub filter_channels: usize,
    pub out_channels: usize,
}

impl ConvSizes {
    /// Returns the number of groups into which the input channels are divided.
    pub fn groups(&self) -> usize {
        self.in_channels / self.filter_channels
    }
}

const STRIDED: [&str; 3] = [
    "Sliding window strides",
    "Row and column strides should be larger than 0.",
    "Current implementation does not yet support strides in the batch and depth dimensions.",
];
const DILATED: [&str; 3] = [
    "Sliding window dilations",
    "Dilated rates should be larger than 0.",
    "Current implementation does not yet support dilations in the batch and depth dimensions.",
];

impl Conv {
    /// Parses the attributes of a convolution over images.
    ///
    /// # Errors
    /// `InvalidArgument` for malformed attributes, `Unimplemented` for attributes that no kernel supports.
    pub fn of_images(node: &impl ReadAttr) -> Result<Conv> {
        let format = DataFormat::parse(&node.read_attr::<String>("data_format")?)?;
        let spatial = |values: Vec<i64>, [what, larger, inner]: [&str; 3]| {
            if let Ok(sizes) = <[i64; 4]>::try_from(&values[..])
                && let [n, _, _, c] = format.to_nhwc(sizes)
                && (n, c) != (1, 1)
            {
                return Err(Error::unimplemented(inner));
            }
            let [_, h, w, _] = positive(&values, format, what, larger)?;
            Ok([1, h, w])
        };
        let kind: String = node.read_attr("padding")?;
        let explicit: Vec<i64> = node.read_attr("explicit_paddings")?;
        Ok(Conv {
            strides: spatial(node.read_attr("strides")?, STRIDED)?,
            dilations: spatial(node.read_attr("dilations")?, DILATED)?,
            padding: Padding::parse(&kind, &explicit, format)?,
            format,
            volumes: false,
        })
    }

    /// Like [`Conv::of_images`], for gradient and depthwise ops, where TensorFlow reports missing kernels as
    /// `InvalidArgument`.
    pub fn of_gradient_of_images(node: &impl ReadAttr) -> Result<Conv> {
        Conv::of_images(node).map_err(|e| match e.code() {
            Code::Unimplemented => Error::invalid(e.to_string()),
            _ => e,
        })
    }

    /// Parses the attributes of a convolution over volumes.
    ///
    /// # Errors
    /// `InvalidArgument` for malformed attributes.
    pub fn of_volumes(node: &impl ReadAttr) -> Result<Conv> {
        let format = node.read_attr::<String>("data_format");
        // The first versions of the gradient ops have no such attribute.
        let format = DataFormat::parse_volumes(&format.unwrap_or_else(|_| "NDHWC".to_owned()))?;
        let spatial = |values: Vec<i64>, [what, larger, inner]: [&str; 3]| {
            let [n, d, h, w, c] = positive(&values, format, what, larger)?;
            if n == 1 && c == 1 { Ok([d, h, w]) } else { Err(Error::invalid(inner)) }
        };
        Ok(Conv {
            strides: spatial(node.read_attr("strides")?, STRIDED)?,
            dilations: spatial(node.read_attr("dilations")?, DILATED)?,
            padding: Padding::parse(&node.read_attr::<String>("padding")?, &[], format)?,
            format,
            volumes: true,
        })
    }

    /// Returns the number of axes of the data and of the filter.
    pub fn rank(&self) -> usize {
        if self.volumes { 5 } else { 4 }
    }

    /// Converts sizes in the data format to `[batch, planes, rows, columns, channels]`; for images, `one` is the number
    /// of planes.
    fn data<T: Copy>(&self, sizes: &[T], one: T) -> Option<[T; 5]> {
        match *sizes {
            [a, b, c, d] if !self.volumes => {
                let [n, h, w, c] = self.format.to_nhwc([a, b, c, d]);
                Some([n, one, h, w, c])
            }
            [a, b, c, d, e] if self.volumes => Some(self.format.to_nhwc([a, b, c, d, e])),
            _ => None,
        }
    }

    /// Returns the sizes of a filter as `[planes, rows, columns, input channels, output channels]`.
    fn filter<T: Copy>(&self, sizes: &[T], one: T) -> Option<[T; 5]> {
        match *sizes {
            [h, w, i, o] if !self.volumes => Some([one, h, w, i, o]),
            [d, h, w, i, o] if self.volumes => Some([d, h, w, i, o]),
            _ => None,
        }
    }

    /// Converts sizes in the order `[batch, planes, rows, columns, channels]` to the data format.
    fn of_data<T: Copy>(&self, [n, d, h, w, c]: [T; 5]) -> SmallVec<[T; 5]> {
        if self.volumes {
            SmallVec::from_slice(&self.format.of_nhwc([n, d, h, w, c]))
        } else {
            SmallVec::from_slice(&self.format.of_nhwc([n, h, w, c]))
        }
    }

    /// Returns the window that the filter forms along a spatial axis (0 planes, 1 rows, 2 columns). Explicit padding
    /// applies to rows and columns only.
    fn window(&self, input: usize, filter: usize, axis: usize) -> Result<Window> {
        let (stride, dilation) = (self.strides[axis], self.dilations[axis]);
        match axis {
            0 if !self.volumes => Window::new(1, 1, 1, 1, Padding::Valid, 0),
            _ => Window::new(input, filter, stride, dilation, self.padding, axis.saturating_sub(1)),
        }
    }

    /// Returns the sizes of a convolution of an input and a filter of these shapes.
    ///
    /// # Errors
    /// `InvalidArgument` if the shapes do not fit each other, or if elements of the output have no filter.
    pub fn sizes(&self, input: &[usize], filter: &[usize]) -> Result<ConvSizes> {
        let sizes = self.sizes_or_empty(input, filter)?;
        if sizes.in_channels == 0 {
            crate::invalid!("input depth must be > 0");
        }
        self.check_filter(&sizes)?;
        Ok(sizes)
    }

    /// Checks that the filter of a convolution is not empty. Images without output elements need no filter.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty filter.
    pub fn check_filter(&self, sizes: &ConvSizes) -> Result<()> {
        let ConvSizes { batch, planes, rows, columns, filter_channels, out_channels, .. } = sizes;
        let filter = [planes.filter, rows.filter, columns.filter, *filter_channels, *out_channels];
        let is_needed = self.volumes || *batch > 0 && *out_channels > 0;
        if is_needed && filter.contains(&0) {
            crate::invalid!("filter must not have zero elements (i.e. all dimensions must be non-zero)");
        }
        Ok(())
    }

    /// Like [`Conv::sizes`], also for inputs without channels and for empty filters. The convolution of either is zero,
    /// and so are its gradients.
    pub fn sizes_or_empty(&self, input: &[usize], filter: &[usize]) -> Result<ConvSizes> {
        let sizes = self.spatial_sizes(input, filter)?;
        if self.volumes && sizes.in_channels != sizes.filter_channels {
            crate::invalid!(
                "input and filter must have the same depth: {} vs {}",
                sizes.in_channels,
                sizes.filter_channels
            );
        }
        check_depth(sizes.in_channels, sizes.filter_channels, sizes.out_channels)?;
        Ok(sizes)
    }

    /// Like [`Conv::sizes`], for a depthwise convolution, in which each input channel is convolved with separate
    /// filters.
    pub fn depthwise_sizes(&self, input: &[usize], filter: &[usize]) -> Result<ConvSizes> {
        let sizes = self.spatial_sizes(input, filter)?;
        if sizes.in_channels != sizes.filter_channels {
            crate::invalid!(
                "input and filter must have the same depth: {} vs {}",
                sizes.in_channels,
                sizes.filter_channels
            );
        }
        let channels = sizes.in_channels.checked_mul(sizes.out_channels);
        let out_channels = channels.ok_or_else(|| Error::invalid("the output's depth overflows"))?;
        Ok(ConvSizes { out_channels, filter_channels: 1, ..sizes })
    }

    fn spatial_sizes(&self, input: &[usize], filter: &[usize]) -> Result<ConvSizes> {
        let rank = self.rank();
        let Some([batch, d, h, w, in_channels]) = self.data(input, 1) else {
            crate::invalid!("input must be {rank}-dimensional: {}", Shape::new(input)?);
        };
        let Some([fd, fh, fw, filter_channels, out_channels]) = self.filter(filter, 1) else {
            crate::invalid!("filter must be {rank}-dimensional: {}", Shape::new(filter)?);
        };
        Ok(ConvSizes {
            batch,
            planes: self.window(d, fd, 0)?,
            rows: self.window(h, fh, 1)?,
            columns: self.window(w, fw, 2)?,
            in_channels,
            filter_channels,
            out_channels,
        })
    }

    /// Returns the output's shape in the data format.
    pub fn output_shape(&self, sizes: &ConvSizes) -> Result<Shape> {
        let (d, h, w) = (sizes.planes.output, sizes.rows.output, sizes.columns.output);
        Shape::new(&self.of_data([sizes.batch, d, h, w, sizes.out_channels]))
    }

    /// Returns the shape of an image batch in the data format, from its spatial sizes, batch size and channels.
    pub fn input_shape<T: Copy>(&self, [h, w]: [T; 2], batch: T, channels: T) -> [T; 4] {
        self.format.of_nhwc([batch, h, w, channels])
    }
}

fn check_depth(input: usize, filter: usize, output: usize) -> Result<()> {
    if filter == 0 || !input.is_multiple_of(filter) {
        crate::invalid!("input depth must be evenly divisible by filter depth: {input} vs {filter}");
    }
    let groups = input / filter;
    if groups > 0 && !output.is_multiple_of(groups) {
        crate::invalid!("output depth must be evenly divisible by number of groups: {output} vs {groups}");
    }
    Ok(())
}

/// Infers the output shape of a convolution over images.
pub(super) fn infer_images(infer: &mut Infer<'_>) -> Result<()> {
    infer_forward(infer, &Conv::of_images(infer)?, false)
}

/// Infers the output shape of a convolution with these attributes. The number of output channels of a depthwise
/// convolution is the product of the input's channels and the filter's channel multiplier.
fn infer_forward(infer: &mut Infer<'_>, conv: &Conv, depthwise: bool) -> Result<()> {
    let input = infer.input_of_rank(0, conv.rank())?;
    let filter = infer.input_of_rank(1, conv.rank())?;
    let dims = |s: &PartialShape| (0..conv.rank()).map(|i| s.dim(i)).collect::<SmallVec<[Dim; 5]>>();
    let (Some([batch, d, h, w, channels]), Some([fd, fh, fw, fc, fo])) =
        (conv.data(&dims(&input), Some(1)), conv.filter(&dims(&filter), Some(1)))
    else {
        return Ok(());
    };
    let out_channels = if depthwise {
        if let (Some(c), Some(f)) = (channels, fc)
            && c != f
        {
            crate::invalid!("Dimensions must be equal, but are {c} and {f}");
        }
        channels.or(fc).zip(fo).and_then(|(c, m)| c.checked_mul(m))
    } else {
        if let (Some(c), Some(f), Some(o)) = (channels, fc, fo) {
            check_depth(c, f, o)?;
        }
        fo
    };
    let axis = |input: Dim, filter: Dim, i: usize| match (input, filter) {
        (Some(input), Some(filter)) => Ok(Some(conv.window(input, filter, i)?.output)),
        (Some(input), None) if conv.padding == Padding::Same => Ok(Some(conv.window(input, 1, i)?.output)),
        _ => Ok::<_, Error>(None),
    };
    let out = conv.of_data([batch, axis(d, fd, 0)?, axis(h, fh, 1)?, axis(w, fw, 2)?, out_channels]);
    infer.set(0, PartialShape::of_dims(out));
    Ok(())
}

/// Infers the output shape of a gradient op with respect to the input. Input 0 holds that shape or, for images, only
/// the numbers of rows and columns.
fn infer_input(infer: &mut Infer<'_>, conv: &Conv) -> Result<()> {
    let mut shape = infer.value_as_shape(0)?;
    if shape.rank() == Some(2) && !conv.volumes {
        let (filter, dy) = (infer.input(1), infer.input(2));
        shape = conv.input_shape([shape.dim(0), shape.dim(1)], dy.dim(0), filter.dim(2)).into();
    }
    infer.set(0, shape.with_rank(conv.rank())?);
    Ok(())
}

fn infer_filter(infer: &mut Infer<'_>, rank: usize) -> Result<()> {
    let shape = infer.value_as_shape(1)?.with_rank(rank)?;
    infer.set(0, shape);
    Ok(())
}

fn sizes(s: &Scope, x: Output) -> Output {
    s.op("Shape").input(x).output()
}

impl ConvOps {
    fn forward_grad(&self, s: &Scope, f: &Forward, dy: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
        let Some(dy) = dy[0] else { return Ok(vec![None, None]) };
        let (x, w) = (f.input(0), f.input(1));
        let (x_shape, w_shape) = (sizes(s, x), sizes(s, w));
        let dx = s.op(self.0[1]).input(x_shape).input(w).input(dy);
        let dw = s.op(self.0[2]).input(x).input(w_shape).input(dy);
        Ok(vec![Some(with_attrs(f, dx)?.output()), Some(with_attrs(f, dw)?.output())])
    }

    fn input_grad(&self, s: &Scope, f: &Forward, d: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
        let Some(d) = d[0] else { return Ok(vec![None, None, None]) };
        let w_shape = sizes(s, f.input(1));
        let dw = s.op(self.0[2]).input(d).input(w_shape).input(f.input(2));
        let dy = s.op(self.0[0]).input(d).input(f.input(1));
        Ok(vec![None, Some(with_attrs(f, dw)?.output()), Some(with_attrs(f, dy)?.output())])
    }

    fn filter_grad(&self, s: &Scope, f: &Forward, d: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
        let Some(d) = d[0] else { return Ok(vec![None, None, None]) };
        let x_shape = sizes(s, f.input(0));
        let dx = s.op(self.0[1]).input(x_shape).input(d).input(f.input(2));
        let dy = s.op(self.0[0]).input(f.input(0)).input(d);
        Ok(vec![Some(with_attrs(f, dx)?.output()), None, Some(with_attrs(f, dy)?.output())])
    }
}

/// Copies the convolution's attributes to a call of one of its gradient ops.
fn with_attrs<'a>(f: &Forward, mut call: Call<'a>) -> Result<Call<'a>> {
    for name in ["strides", "use_cudnn_on_gpu", "padding", "explicit_paddings", "data_format", "dilations"] {
        if f.node.op.attr_spec(name).is_some() {
            call = call.attr(name, f.attr::<AttrValue>(name)?);
        }
    }
    Ok(call)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Node;

    fn node(format: &str, strides: [i64; 4], padding: &str) -> Node {
        let op = crate::ops::lookup("Conv2D").unwrap_or_else(|| unreachable!());
        let mut node = Node::new("c", op);
        node.attrs.set("strides", strides.to_vec());
        node.attrs.set("padding", padding);
        node.attrs.set("data_format", format);
        node
    }

    #[test]
    fn output_sizes_follow_strides_and_padding() -> Result<()> {
        let conv = Conv::of_images(&node("NCHW", [1, 1, 2, 1], "SAME"))?;
        let sizes = conv.sizes(&[2, 4, 5, 7], &[3, 3, 2, 6])?;
        assert_eq!(conv.output_shape(&sizes)?.dims(), [2, 6, 3, 7]);
        assert_eq!(sizes.groups(), 2);
        assert!(conv.sizes(&[2, 4, 5, 7], &[3, 3, 3, 6]).is_err());
        assert!(conv.sizes(&[2, 4, 5, 7], &[3, 3, 2, 5]).is_err());
        assert!(conv.sizes(&[2, 4, 5, 7], &[3, 0, 2, 6]).is_err());
        assert!(conv.sizes(&[2, 4, 5], &[3, 3, 2, 6]).is_err());
        let valid = Conv::of_images(&node("NHWC", [1, 1, 1, 1], "VALID"))?;
        assert!(valid.sizes(&[1, 2, 5, 1], &[4, 1, 1, 1]).is_err());
        Ok(())
    }

    #[test]
    fn wrong_attributes_are_refused() {
        let code = |n: &Node| Conv::of_images(n).map_err(|e| e.code());
        assert_eq!(code(&node("NHWC", [2, 1, 1, 1], "SAME")), Err(crate::Code::Unimplemented));
        assert_eq!(code(&node("NHWC", [1, 0, 1, 1], "SAME")), Err(crate::Code::InvalidArgument));
        assert_eq!(code(&node("NHWC", [1, 1, 1, 1], "EXPLICIT")), Err(crate::Code::InvalidArgument));
        let mut short = node("NHWC", [1; 4], "SAME");
        short.attrs.set("strides", vec![1i64, 1]);
        assert_eq!(code(&short), Err(crate::Code::InvalidArgument));
    }
}
