//! Two-dimensional convolution and its gradients.

use super::window::{DataFormat, Padding, ReadAttr, Window, four};
use super::{Gradient, OpDef};
use crate::attr::AttrValue;
use crate::builder::{Call, Forward, Scope};
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

pub(super) const STRIDES: &str = "strides: list(int)";
const CUDNN: &str = "use_cudnn_on_gpu: bool = true";
pub(super) const PADDING: &str = "padding: {'SAME', 'VALID', 'EXPLICIT'}";
pub(super) const EXPLICIT: &str = "explicit_paddings: list(int) = []";
const FORMAT: &str = "data_format: {'NHWC', 'NCHW'} = 'NHWC'";
pub(super) const DILATIONS: &str = "dilations: list(int) = [1, 1, 1, 1]";

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Conv2D",
        inputs: &["input: T", "filter: T"],
        outputs: &["output: T"],
        attrs: &[
            "T: {half, bfloat16, float, double, int32}",
            STRIDES,
            CUDNN,
            PADDING,
            EXPLICIT,
            FORMAT,
            DILATIONS,
        ],
        infer: infer_forward,
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None, None]) };
            let (x, w) = (f.input(0), f.input(1));
            let (x_shape, w_shape) = (sizes(s, x), sizes(s, w));
            let dx = s.op("Conv2DBackpropInput").input(x_shape).input(w).input(dy);
            let dw = s.op("Conv2DBackpropFilter").input(x).input(w_shape).input(dy);
            Ok(vec![Some(with_attrs(f, dx)?.output()), Some(with_attrs(f, dw)?.output())])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "Conv2DBackpropInput",
        inputs: &["input_sizes: int32", "filter: T", "out_backprop: T"],
        outputs: &["output: T"],
        attrs: &[
            "T: {half, bfloat16, float, double, int32}",
            STRIDES,
            CUDNN,
            PADDING,
            EXPLICIT,
            FORMAT,
            DILATIONS,
        ],
        infer: |infer| {
            let mut shape = infer.value_as_shape(0)?;
            if shape.rank() == Some(2) {
                // Rows and columns alone: the rest follows from the other inputs.
                let conv = Conv2D::of(infer)?;
                let (filter, dy) = (infer.input(1), infer.input(2));
                shape = conv.format.of_nhwc([dy.dim(0), shape.dim(0), shape.dim(1), filter.dim(2)]).into();
            }
            infer.set(0, shape.with_rank(4)?);
            Ok(())
        },
        gradient: Gradient::Defined(|s, f, d| {
            let Some(d) = d[0] else { return Ok(vec![None, None, None]) };
            let w_shape = sizes(s, f.input(1));
            let dw = s.op("Conv2DBackpropFilter").input(d).input(w_shape).input(f.input(2));
            let dy = s.op("Conv2D").input(d).input(f.input(1));
            Ok(vec![None, Some(with_attrs(f, dw)?.output()), Some(with_attrs(f, dy)?.output())])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "Conv2DBackpropFilter",
        inputs: &["input: T", "filter_sizes: int32", "out_backprop: T"],
        outputs: &["output: T"],
        attrs: &["T: {half, bfloat16, float, double}", STRIDES, CUDNN, PADDING, EXPLICIT, FORMAT, DILATIONS],
        infer: |infer| {
            let shape = infer.value_as_shape(1)?.with_rank(4)?;
            infer.set(0, shape);
            Ok(())
        },
        gradient: Gradient::Defined(|s, f, d| {
            let Some(d) = d[0] else { return Ok(vec![None, None, None]) };
            let x_shape = sizes(s, f.input(0));
            let dx = s.op("Conv2DBackpropInput").input(x_shape).input(d).input(f.input(2));
            let dy = s.op("Conv2D").input(f.input(0)).input(d);
            Ok(vec![Some(with_attrs(f, dx)?.output()), None, Some(with_attrs(f, dy)?.output())])
        }),
        ..OpDef::NEW
    },
];

/// The attributes of a two-dimensional convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2D {
    /// Of rows and columns.
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    pub padding: Padding,
    pub format: DataFormat,
}

/// The sizes of one convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvSizes {
    pub batch: usize,
    pub rows: Window,
    pub columns: Window,
    pub in_channels: usize,
    /// Input channels that a filter sees: `in_channels / groups`.
    pub filter_channels: usize,
    pub out_channels: usize,
}

impl ConvSizes {
    pub fn groups(&self) -> usize {
        self.in_channels / self.filter_channels
    }
}

impl Conv2D {
    /// Parses the attributes of a node.
    pub fn of(node: &impl ReadAttr) -> Result<Conv2D> {
        let format = DataFormat::parse(&node.read_attr::<String>("data_format")?)?;
        let strides: Vec<i64> = node.read_attr("strides")?;
        let strides = four(
            &strides,
            format,
            "Sliding window strides",
            "Row and column strides should be larger than 0.",
        )?;
        if strides[0] != 1 || strides[3] != 1 {
            return Err(Error::unimplemented(
                "Current implementation does not yet support strides in the batch and depth dimensions.",
            ));
        }
        let dilations: Vec<i64> = node.read_attr("dilations")?;
        let dilations =
            four(&dilations, format, "Sliding window dilations", "Dilated rates should be larger than 0.")?;
        if dilations[0] != 1 || dilations[3] != 1 {
            return Err(Error::unimplemented(
                "Current implementation does not yet support dilations in the batch and depth dimensions.",
            ));
        }
        let kind: String = node.read_attr("padding")?;
        let explicit: Vec<i64> = node.read_attr("explicit_paddings")?;
        Ok(Conv2D {
            strides: [strides[1], strides[2]],
            dilations: [dilations[1], dilations[2]],
            padding: Padding::parse(&kind, &explicit, format)?,
            format,
        })
    }

    /// The sizes for an input and a filter of these shapes.
    ///
    /// # Errors
    /// `InvalidArgument` where they do not fit each other.
    pub fn sizes(&self, input: &[usize], filter: &[usize]) -> Result<ConvSizes> {
        let &[a, b, c, d] = input else {
            crate::invalid!("input must be 4-dimensional: {input:?}");
        };
        let &[filter_rows, filter_columns, filter_channels, out_channels] = filter else {
            crate::invalid!("filter must be 4-dimensional: {filter:?}");
        };
        let [batch, rows, columns, in_channels] = self.format.to_nhwc([a, b, c, d]);
        if filter.contains(&0) {
            crate::invalid!("filter must not have zero elements (i.e. all dimensions must be non-zero)");
        }
        check_depth(in_channels, filter_channels, out_channels)?;
        let axis = |input, filter, i: usize| {
            Window::new(input, filter, self.strides[i], self.dilations[i], self.padding, i)
        };
        Ok(ConvSizes {
            batch,
            rows: axis(rows, filter_rows, 0)?,
            columns: axis(columns, filter_columns, 1)?,
            in_channels,
            filter_channels,
            out_channels,
        })
    }

    /// The output's shape, in the data format.
    pub fn output_shape(&self, sizes: &ConvSizes) -> [usize; 4] {
        self.format.of_nhwc([sizes.batch, sizes.rows.output, sizes.columns.output, sizes.out_channels])
    }
}

fn check_depth(input: usize, filter: usize, output: usize) -> Result<()> {
    if filter == 0 || input == 0 || !input.is_multiple_of(filter) {
        crate::invalid!("input depth must be evenly divisible by filter depth: {input} vs {filter}");
    }
    let groups = input / filter;
    if !output.is_multiple_of(groups) {
        crate::invalid!("output depth must be evenly divisible by number of groups: {output} vs {groups}");
    }
    Ok(())
}

pub(super) fn infer_forward(infer: &mut Infer<'_>) -> Result<()> {
    let conv = Conv2D::of(infer)?;
    let input = infer.input_of_rank(0, 4)?;
    let filter = infer.input_of_rank(1, 4)?;
    let [batch, rows, columns, channels] =
        conv.format.to_nhwc([input.dim(0), input.dim(1), input.dim(2), input.dim(3)]);
    if let (Some(c), Some(f), Some(o)) = (channels, filter.dim(2), filter.dim(3)) {
        check_depth(c, f, o)?;
    }
    let axis = |input: Dim, i: usize| {
        Window::output_dim(input, filter.dim(i), conv.strides[i], conv.dilations[i], conv.padding, i)
    };
    let out = conv.format.of_nhwc([batch, axis(rows, 0)?, axis(columns, 1)?, filter.dim(3)]);
    infer.set(0, PartialShape::from(out));
    Ok(())
}

fn sizes(s: &Scope, x: Output) -> Output {
    s.op("Shape").input(x).output()
}

/// The convolution's attributes on one of its gradients.
fn with_attrs<'a>(f: &Forward, mut call: Call<'a>) -> Result<Call<'a>> {
    for name in ["strides", "use_cudnn_on_gpu", "padding", "explicit_paddings", "data_format", "dilations"] {
        call = call.attr(name, f.attr::<AttrValue>(name)?);
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
    fn sizes_of_a_convolution() -> Result<()> {
        let conv = Conv2D::of(&node("NCHW", [1, 1, 2, 1], "SAME"))?;
        let sizes = conv.sizes(&[2, 4, 5, 7], &[3, 3, 2, 6])?;
        assert_eq!(conv.output_shape(&sizes), [2, 6, 3, 7]);
        assert_eq!(sizes.groups(), 2);
        assert!(conv.sizes(&[2, 4, 5, 7], &[3, 3, 3, 6]).is_err());
        assert!(conv.sizes(&[2, 4, 5, 7], &[3, 3, 2, 5]).is_err());
        assert!(conv.sizes(&[2, 4, 5, 7], &[3, 0, 2, 6]).is_err());
        assert!(conv.sizes(&[2, 4, 5], &[3, 3, 2, 6]).is_err());
        let valid = Conv2D::of(&node("NHWC", [1, 1, 1, 1], "VALID"))?;
        assert!(valid.sizes(&[1, 2, 5, 1], &[4, 1, 1, 1]).is_err());
        Ok(())
    }

    #[test]
    fn wrong_attributes() {
        let code = |n: &Node| Conv2D::of(n).map_err(|e| e.code());
        assert_eq!(code(&node("NHWC", [2, 1, 1, 1], "SAME")), Err(crate::Code::Unimplemented));
        assert_eq!(code(&node("NHWC", [1, 0, 1, 1], "SAME")), Err(crate::Code::InvalidArgument));
        assert_eq!(code(&node("NHWC", [1, 1, 1, 1], "EXPLICIT")), Err(crate::Code::InvalidArgument));
        let mut short = node("NHWC", [1; 4], "SAME");
        short.attrs.set("strides", vec![1i64, 1]);
        assert_eq!(code(&short), Err(crate::Code::InvalidArgument));
    }
}
