//! Dilation of greyscale images, and its gradients.

use super::window::{DataFormat, Padding, ReadAttr};
use super::{Gradient, OpDef};
use crate::attr::AttrValue;
use crate::builder::{Forward, Scope};
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

/// The fields that the op table rows of the dilation op and its gradients share.
const DILATION: OpDef = OpDef {
    inputs: &["input: T", "filter: T"],
    outputs: &["output: T"],
    attrs: &[
        "T: realnumbertype",
        "strides: list(int) >= 4",
        "rates: list(int) >= 4",
        "padding: {'SAME', 'VALID'}",
    ],
    ..OpDef::NEW
};

const BACKPROP: OpDef = OpDef { inputs: &["input: T", "filter: T", "out_backprop: T"], ..DILATION };

pub(super) const OPS: &[OpDef] = &[
    OpDef { name: "Dilation2D", infer, gradient: Gradient::Defined(gradient), ..DILATION },
    OpDef {
        name: "Dilation2DBackpropInput",
        outputs: &["in_backprop: T"],
        infer: |infer| {
            let shape = infer.input(0);
            infer.set(0, shape);
            Ok(())
        },
        ..BACKPROP
    },
    OpDef {
        name: "Dilation2DBackpropFilter",
        outputs: &["filter_backprop: T"],
        infer: |infer| {
            let shape = infer.input(1);
            infer.set(0, shape);
            Ok(())
        },
        ..BACKPROP
    },
];

fn gradient(s: &Scope, f: &Forward, dy: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dy) = dy[0] else { return Ok(vec![None; 2]) };
    let of = |op: &str| -> Result<Option<Output>> {
        let mut call = s.op(op).input(f.input(0)).input(f.input(1)).input(dy);
        for attr in ["strides", "rates", "padding"] {
            call = call.attr(attr, f.attr::<AttrValue>(attr)?);
        }
        Ok(Some(call.output()))
    };
    Ok(vec![of("Dilation2DBackpropInput")?, of("Dilation2DBackpropFilter")?])
}

fn infer(infer: &mut Infer<'_>) -> Result<()> {
    let (input, filter) = (infer.input_of_rank(0, 4)?, infer.input_of_rank(1, 3)?);
    let dilation = Dilation::of(infer)?;
    let side = |axis: usize| -> Result<Dim> {
        let (Some(i), Some(f)) = (input.dim(axis + 1), filter.dim(axis)) else { return Ok(None) };
        Ok(Some(dilation.axis(axis, i, f)?.output))
    };
    let depth = match (input.dim(3), filter.dim(2)) {
        (Some(a), Some(b)) if a != b => crate::invalid!("Dimensions must be equal, but are {a} and {b}"),
        (a, b) => a.or(b),
    };
    let dims = [input.dim(0), side(0)?, side(1)?, depth];
    infer.set(0, PartialShape::of_dims(dims));
    Ok(())
}

/// The strides, dilation rates and padding of a dilation, each for rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dilation {
    strides: [i64; 2],
    rates: [i32; 2],
    padding: Padding,
}

/// The sizes of a dilation along one axis, in elements: input, filter, output, stride, rate and padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DilationAxis {
    pub input: usize,
    pub filter: usize,
    pub output: usize,
    pub stride: i64,
    pub rate: i32,
    pub pad_before: i64,
}

impl Dilation {
    /// Parses the attributes of a dilation or of one of its gradients.
    pub fn of(node: &impl ReadAttr) -> Result<Dilation> {
        let padding = Padding::parse(&node.read_attr::<String>("padding")?, &[], DataFormat::Nhwc)?;
        let strides = across_space(node, "strides")?.map(i64::from);
        Ok(Dilation { strides, rates: across_space(node, "rates")?, padding })
    }

    /// Returns the sizes and the padding of the dilation along rows (axis 0) or columns (axis 1), where the input has
    /// `input` and the filter `filter` rows or columns. Any rate and an empty filter are allowed, because TensorFlow
    /// computes the output's size for them without a check.
    ///
    /// # Errors
    /// `InvalidArgument` if the stride is not positive, or sizes are out of range.
    pub fn axis(&self, axis: usize, input: usize, filter: usize) -> Result<DilationAxis> {
        let (stride, rate) = (self.strides[axis], self.rates[axis]);
        if stride <= 0 {
            crate::invalid!("Stride must be > 0, but got {stride}");
        }
        let overflow = |_| Error::invalid("the size of a dilation is out of range");
        let signed = |v: usize| i32::try_from(v).map_err(overflow);
        let (i, f) = (i64::from(signed(input)?), signed(filter)?);
        // The arithmetic wraps at 32 bits, like TensorFlow's: a rate that is far too large may wrap to a valid one.
        let effective = i64::from(f.wrapping_add((f - 1).wrapping_mul(rate.wrapping_sub(1))));
        let (output, pad_before) = match self.padding {
            Padding::Same => {
                let output = (i + stride - 1) / stride;
                (output, ((output - 1) * stride + effective - i).max(0) / 2)
            }
            _ => ((i - effective + stride) / stride, 0),
        };
        let Ok(output) = usize::try_from(output) else {
            crate::invalid!(
                "Computed output size would be negative: {output} [input_size: {input}, effective_filter_size: \
                 {effective}, stride: {stride}]"
            );
        };
        Ok(DilationAxis { input, filter, output, stride, rate, pad_before })
    }
}

impl DilationAxis {
    /// Returns the input position under the first tap of the filter at `output`; a negative position is in the
    /// padding.
    pub fn start(&self, output: usize) -> i64 {
        output as i64 * self.stride - self.pad_before
    }

    /// Returns the taps of the filter at `output`, each with its input position; taps in the padding are left out.
    pub fn taps(&self, output: usize) -> impl Iterator<Item = (usize, usize)> {
        let (start, rate, input) = (self.start(output), self.rate, self.input);
        (0..self.filter).filter_map(move |tap| {
            let position = (start as i32).wrapping_add((tap as i32).wrapping_mul(rate));
            let position = usize::try_from(position).ok()?;
            (position < input).then_some((tap, position))
        })
    }
}

/// Returns the values for rows and columns of an attribute `[1, rows, columns, 1]`.
fn across_space(node: &impl ReadAttr, name: &str) -> Result<[i32; 2]> {
    let values: Vec<i64> = node.read_attr(name)?;
    let values = values.into_iter().map(i32::try_from).collect::<Result<Vec<i32>, _>>();
    let values =
        values.map_err(|_| Error::invalid(format!("Attr {name} has a value out of range for an int32")))?;
    match values[..] {
        [1, rows, columns, 1] => Ok([rows, columns]),
        [_, _, _, _] => Err(Error::unimplemented(format!(
            "Only support {name} across spatial dimensions; those of batch and depth must be 1."
        ))),
        _ => {
            crate::invalid!(
                "Dilation2D requires the {name} attribute to contain 4 values, but got: {}",
                values.len()
            )
        }
    }
}
