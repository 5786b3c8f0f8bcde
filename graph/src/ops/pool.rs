//! Two-dimensional pooling and its gradients.

use super::window::{DataFormat, Padding, ReadAttr, Window, four};
use super::{Gradient, OpDef};
use crate::attr::AttrValue;
use crate::builder::{Call, Forward, Scope};
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

const KSIZE: &str = "ksize: list(int) >= 4";
const STRIDES: &str = "strides: list(int) >= 4";
const PADDING: &str = "padding: {'SAME', 'VALID'}";
const ANY_PADDING: &str = "padding: {'SAME', 'VALID', 'EXPLICIT'}";
const EXPLICIT: &str = "explicit_paddings: list(int) = []";
const FORMAT: &str = "data_format: {'NHWC', 'NCHW'} = 'NHWC'";

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "MaxPool",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &[
            "T: {half, bfloat16, float, double, int32, int64, uint8, int16, int8, uint16, qint8} = float",
            KSIZE,
            STRIDES,
            ANY_PADDING,
            EXPLICIT,
            "data_format: {'NHWC', 'NCHW', 'NCHW_VECT_C'} = 'NHWC'",
        ],
        infer: infer_forward,
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None]) };
            let call = s.op("MaxPoolGrad").input(f.input(0)).input(f.output(0)).input(dy);
            Ok(vec![Some(with_attrs(f, call, &["explicit_paddings"])?.output())])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "MaxPoolGrad",
        inputs: &["orig_input: T", "orig_output: T", "grad: T"],
        outputs: &["output: T"],
        attrs: &[KSIZE, STRIDES, ANY_PADDING, EXPLICIT, FORMAT, "T: realnumbertype = float"],
        infer: |infer| {
            let shape = infer.input_of_rank(0, 4)?;
            infer.set(0, shape);
            Ok(())
        },
        gradient: Gradient::Defined(|s, f, d| max_pool_grad(s, f, d, "MaxPoolGradGrad")),
        ..OpDef::NEW
    },
    OpDef {
        name: "MaxPoolGradGrad",
        inputs: &["orig_input: T", "orig_output: T", "grad: T"],
        outputs: &["output: T"],
        attrs: &[KSIZE, STRIDES, PADDING, FORMAT, "T: realnumbertype"],
        infer: |infer| {
            infer_forward(infer)?;
            infer.input(2).merge(&infer.input(0))?;
            Ok(())
        },
        gradient: Gradient::Defined(|s, f, d| max_pool_grad(s, f, d, "MaxPoolGrad")),
        ..OpDef::NEW
    },
    OpDef {
        name: "AvgPool",
        inputs: &["value: T"],
        outputs: &["output: T"],
        attrs: &[KSIZE, STRIDES, PADDING, FORMAT, "T: {half, bfloat16, float, double}"],
        infer: infer_forward,
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None]) };
            let shape = s.op("Shape").input(f.input(0)).output();
            let call = s.op("AvgPoolGrad").input(shape).input(dy);
            Ok(vec![Some(with_attrs(f, call, &[])?.output())])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "AvgPoolGrad",
        inputs: &["orig_input_shape: int32", "grad: T"],
        outputs: &["output: T"],
        attrs: &[KSIZE, STRIDES, PADDING, FORMAT, "T: {half, bfloat16, float, double}"],
        infer: |infer| {
            let shape = infer.value_as_shape(0)?.with_rank(4)?;
            infer.set(0, shape);
            Ok(())
        },
        gradient: Gradient::Defined(|s, f, d| {
            let Some(d) = d[0] else { return Ok(vec![None, None]) };
            Ok(vec![None, Some(with_attrs(f, s.op("AvgPool").input(d), &[])?.output())])
        }),
        ..OpDef::NEW
    },
];

/// The attributes of a pooling: sizes as `[batch, rows, columns, channels]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    pub ksize: [usize; 4],
    pub strides: [usize; 4],
    pub padding: Padding,
    pub format: DataFormat,
}

/// The sizes of one pooling over rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSizes {
    pub batch: usize,
    pub rows: Window,
    pub columns: Window,
    pub channels: usize,
}

impl Pool {
    /// Parses the attributes of a node.
    pub fn of(node: &impl ReadAttr) -> Result<Pool> {
        let format = DataFormat::parse(&node.read_attr::<String>("data_format")?)?;
        let ksize: Vec<i64> = node.read_attr("ksize")?;
        let strides: Vec<i64> = node.read_attr("strides")?;
        let positive = "Sliding window ksize and strides must be positive";
        let ksize = four(&ksize, format, "Sliding window ksize", positive)?;
        let strides = four(&strides, format, "Sliding window strides", positive)?;
        if ksize[0] != 1 || strides[0] != 1 {
            return Err(Error::unimplemented("Pooling is not yet supported on the batch dimension."));
        }
        let kind: String = node.read_attr("padding")?;
        // Only some pooling ops have the attribute.
        let explicit: Vec<i64> =
            if kind == "EXPLICIT" { node.read_attr("explicit_paddings")? } else { vec![] };
        let pool = Pool { ksize, strides, padding: Padding::parse(&kind, &explicit, format)?, format };
        if let Padding::Explicit(pads) = pool.padding
            && pads.iter().zip(&pool.ksize[1..]).any(|(p, &k)| p[0] >= k || p[1] >= k)
        {
            crate::invalid!("explicit paddings must be smaller than the pooling window");
        }
        Ok(pool)
    }

    /// Whether the window spans channels.
    pub fn is_depthwise(&self) -> bool {
        self.ksize[3] > 1 || self.strides[3] > 1
    }

    /// The sizes for an input of this shape, in the data format.
    pub fn sizes(&self, input: &[usize]) -> Result<PoolSizes> {
        let &[a, b, c, d] = input else {
            crate::invalid!("tensor_in must be 4-dimensional: {input:?}");
        };
        let [batch, rows, columns, channels] = self.format.to_nhwc([a, b, c, d]);
        let axis =
            |input, i: usize| Window::new(input, self.ksize[i + 1], self.strides[i + 1], 1, self.padding, i);
        Ok(PoolSizes { batch, rows: axis(rows, 0)?, columns: axis(columns, 1)?, channels })
    }

    /// The output's shape, in the data format.
    pub fn output_shape(&self, sizes: &PoolSizes) -> [usize; 4] {
        self.format.of_nhwc([sizes.batch, sizes.rows.output, sizes.columns.output, sizes.channels])
    }
}

fn infer_forward(infer: &mut Infer<'_>) -> Result<()> {
    let pool = Pool::of(infer)?;
    let x = infer.input_of_rank(0, 4)?;
    let [batch, rows, columns, channels] = pool.format.to_nhwc([x.dim(0), x.dim(1), x.dim(2), x.dim(3)]);
    let axis = |input: Dim, i: usize| {
        Window::output_dim(input, Some(pool.ksize[i + 1]), pool.strides[i + 1], 1, pool.padding, i)
    };
    let depth = match channels {
        Some(c) => Some(Window::new(c, pool.ksize[3], pool.strides[3], 1, Padding::Valid, 0)?.output),
        None => None,
    };
    let out = pool.format.of_nhwc([batch, axis(rows, 0)?, axis(columns, 1)?, depth]);
    infer.set(0, PartialShape::from(out));
    Ok(())
}

/// The maxima's places do not move: only the third input gets a gradient that is not zero.
fn max_pool_grad(s: &Scope, f: &Forward, d: &[Option<Output>], op: &str) -> Result<Vec<Option<Output>>> {
    let Some(d) = d[0] else { return Ok(vec![None; 3]) };
    let zeros = |i: usize| s.op("ZerosLike").input(f.input(i)).output();
    let call = s.op(op).input(f.input(0)).input(f.input(1)).input(d);
    Ok(vec![Some(zeros(0)), Some(zeros(1)), Some(with_attrs(f, call, &[])?.output())])
}

/// The pooling's attributes on one of its gradients.
fn with_attrs<'a>(f: &Forward, mut call: Call<'a>, more: &[&str]) -> Result<Call<'a>> {
    for name in ["ksize", "strides", "padding", "data_format"].iter().chain(more) {
        call = call.attr(name, f.attr::<AttrValue>(name)?);
    }
    Ok(call)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Node;

    fn node(ksize: [i64; 4], strides: [i64; 4], padding: &str) -> Node {
        let op = crate::ops::lookup("MaxPool").unwrap_or_else(|| unreachable!());
        let mut node = Node::new("p", op);
        node.attrs.set("ksize", ksize.to_vec());
        node.attrs.set("strides", strides.to_vec());
        node.attrs.set("padding", padding);
        node
    }

    #[test]
    fn sizes_of_a_pooling() -> Result<()> {
        let pool = Pool::of(&node([1, 3, 2, 1], [1, 2, 2, 1], "SAME"))?;
        let sizes = pool.sizes(&[2, 5, 4, 3])?;
        assert_eq!(pool.output_shape(&sizes), [2, 3, 2, 3]);
        assert!(pool.sizes(&[2, 5]).is_err());
        Ok(())
    }

    #[test]
    fn wrong_attributes() {
        let code = |n: &Node| Pool::of(n).map_err(|e| e.code());
        assert_eq!(code(&node([2, 1, 1, 1], [1; 4], "SAME")), Err(crate::Code::Unimplemented));
        assert_eq!(code(&node([1, 0, 1, 1], [1; 4], "SAME")), Err(crate::Code::InvalidArgument));
        let mut vect = node([1; 4], [1; 4], "SAME");
        vect.attrs.set("data_format", "NCHW_VECT_C");
        assert_eq!(code(&vect), Err(crate::Code::Unimplemented));
        let mut wide = node([1, 2, 2, 1], [1; 4], "EXPLICIT");
        wide.attrs.set("explicit_paddings", vec![0i64, 0, 2, 0, 0, 0, 0, 0]);
        assert_eq!(code(&wide), Err(crate::Code::InvalidArgument));
    }
}
