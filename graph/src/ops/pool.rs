//! Pooling over images and volumes, and its gradients.

mod fractional;

pub use fractional::Fractional;

use super::window::{DataFormat, Padding, ReadAttr, Window, positive};
use super::{Gradient, OpDef};
use crate::attr::AttrValue;
use crate::builder::{Call, Forward, Scope};
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape, Shape};
use smallvec::SmallVec;

const KSIZE: &str = "ksize: list(int) >= 4";
const STRIDES: &str = "strides: list(int) >= 4";
const KSIZE_3D: &str = "ksize: list(int) >= 5";
const STRIDES_3D: &str = "strides: list(int) >= 5";
const PADDING: &str = "padding: {'SAME', 'VALID'}";
const ANY_PADDING: &str = "padding: {'SAME', 'VALID', 'EXPLICIT'}";
const EXPLICIT: &str = "explicit_paddings: list(int) = []";
const FORMAT: &str = "data_format: {'NHWC', 'NCHW'} = 'NHWC'";
const FORMAT_3D: &str = "data_format: {'NDHWC', 'NCDHW'} = 'NDHWC'";
const ANY_FORMAT: &str = "data_format: {'NHWC', 'NCHW', 'NCHW_VECT_C'} = 'NHWC'";
const MAX_T: &str =
    "T: {half, bfloat16, float, double, int32, int64, uint8, int16, int8, uint16, qint8} = float";
const MEAN_T: &str = "T: {half, bfloat16, float, double}";
const BATCH_IN_INDEX: &str = "include_batch_in_index: bool = false";

/// The op table fields that are common to the forward pooling ops: one input and one output.
const FORWARD: OpDef = OpDef { inputs: &["input: T"], outputs: &["output: T"], ..OpDef::NEW };
const OF_MAXIMA: OpDef =
    OpDef { inputs: &["orig_input: T", "orig_output: T", "grad: T"], outputs: &["output: T"], ..OpDef::NEW };
const OF_MEANS: OpDef =
    OpDef { inputs: &["orig_input_shape: int32", "grad: T"], outputs: &["output: T"], ..OpDef::NEW };

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "MaxPool",
        attrs: &[MAX_T, KSIZE, STRIDES, ANY_PADDING, EXPLICIT, ANY_FORMAT],
        infer: |infer| infer_forward(infer, &Pool::of(infer)?),
        gradient: Gradient::Defined(|s, f, dy| max_grad(s, f, dy, "MaxPoolGrad")),
        ..FORWARD
    },
    OpDef {
        name: "MaxPoolGrad",
        attrs: &[KSIZE, STRIDES, ANY_PADDING, EXPLICIT, FORMAT, "T: realnumbertype = float"],
        infer: |infer| like_input(infer, 4),
        gradient: Gradient::Defined(|s, f, d| max_grad_grad(s, f, d, "MaxPoolGradGrad")),
        ..OF_MAXIMA
    },
    OpDef {
        name: "MaxPoolGradGrad",
        attrs: &[KSIZE, STRIDES, PADDING, FORMAT, "T: realnumbertype"],
        infer: |infer| {
            infer_forward(infer, &Pool::of(infer)?)?;
            infer.input(2).merge(&infer.input(0))?;
            Ok(())
        },
        gradient: Gradient::Defined(|s, f, d| max_grad_grad(s, f, d, "MaxPoolGrad")),
        ..OF_MAXIMA
    },
    OpDef {
        name: "MaxPoolV2",
        inputs: &["input: T", "ksize: int32", "strides: int32"],
        attrs: &[MAX_T, PADDING, ANY_FORMAT],
        infer: |infer| match (infer.value(1), infer.value(2)) {
            (Some(ksize), Some(strides)) => {
                let pool = Pool::with(infer, &ksize.to_i64s()?, &strides.to_i64s()?)?;
                infer_forward(infer, &pool)
            }
            _ => {
                infer.set(0, PartialShape::of_rank(4));
                Ok(())
            }
        },
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None; 3]) };
            let call = s.op("MaxPoolGradV2").input(f.input(0)).input(f.output(0)).input(dy);
            let call = with_attrs(f, call.input(f.input(1)).input(f.input(2)))?;
            Ok(vec![Some(call.output()), None, None])
        }),
        ..FORWARD
    },
    OpDef {
        name: "MaxPoolGradV2",
        inputs: &["orig_input: T", "orig_output: T", "grad: T", "ksize: int32", "strides: int32"],
        attrs: &[PADDING, FORMAT, "T: realnumbertype = float"],
        infer: |infer| like_input(infer, 4),
        gradient: Gradient::Defined(|s, f, d| max_grad_grad_v2(s, f, d, "MaxPoolGradGradV2")),
        ..OF_MAXIMA
    },
    OpDef {
        name: "MaxPoolGradGradV2",
        inputs: &["orig_input: T", "orig_output: T", "grad: T", "ksize: int32", "strides: int32"],
        attrs: &[PADDING, FORMAT, "T: realnumbertype"],
        infer: |infer| {
            let pooled = infer.input_of_rank(1, 4)?;
            infer.set(0, pooled);
            Ok(())
        },
        gradient: Gradient::Defined(|s, f, d| max_grad_grad_v2(s, f, d, "MaxPoolGradV2")),
        ..OF_MAXIMA
    },
    OpDef {
        name: "AvgPool",
        inputs: &["value: T"],
        attrs: &[KSIZE, STRIDES, PADDING, FORMAT, MEAN_T],
        infer: |infer| infer_forward(infer, &Pool::of(infer)?),
        gradient: Gradient::Defined(|s, f, dy| mean_grad(s, f, dy, "AvgPoolGrad")),
        ..FORWARD
    },
    OpDef {
        name: "AvgPoolGrad",
        attrs: &[KSIZE, STRIDES, PADDING, FORMAT, MEAN_T],
        infer: |infer| shape_input(infer, 4),
        gradient: Gradient::Defined(|s, f, d| mean_grad_grad(s, f, d, "AvgPool")),
        ..OF_MEANS
    },
    OpDef {
        name: "MaxPool3D",
        attrs: &[KSIZE_3D, STRIDES_3D, PADDING, FORMAT_3D, "T: {half, bfloat16, float}"],
        infer: |infer| infer_forward(infer, &Pool::of_volumes(infer)?),
        gradient: Gradient::Defined(|s, f, dy| max_grad(s, f, dy, "MaxPool3DGrad")),
        ..FORWARD
    },
    OpDef {
        name: "MaxPool3DGrad",
        inputs: &["orig_input: TInput", "orig_output: TInput", "grad: T"],
        attrs: &[
            KSIZE_3D,
            STRIDES_3D,
            PADDING,
            FORMAT_3D,
            "T: {half, bfloat16, float} = float",
            "TInput: {half, bfloat16, float} = float",
        ],
        infer: |infer| like_input(infer, 5),
        gradient: Gradient::Defined(|s, f, d| max_grad_grad(s, f, d, "MaxPool3DGradGrad")),
        ..OF_MAXIMA
    },
    OpDef {
        name: "MaxPool3DGradGrad",
        attrs: &[KSIZE_3D, STRIDES_3D, PADDING, FORMAT_3D, "T: realnumbertype"],
        infer: |infer| {
            infer_forward(infer, &Pool::of_volumes(infer)?)?;
            infer.input(2).merge(&infer.input(0))?;
            Ok(())
        },
        gradient: Gradient::Defined(|s, f, d| max_grad_grad(s, f, d, "MaxPool3DGrad")),
        ..OF_MAXIMA
    },
    OpDef {
        name: "AvgPool3D",
        attrs: &[KSIZE_3D, STRIDES_3D, PADDING, FORMAT_3D, MEAN_T],
        infer: |infer| infer_forward(infer, &Pool::of_volumes(infer)?),
        gradient: Gradient::Defined(|s, f, dy| mean_grad(s, f, dy, "AvgPool3DGrad")),
        ..FORWARD
    },
    OpDef {
        name: "AvgPool3DGrad",
        attrs: &[KSIZE_3D, STRIDES_3D, PADDING, FORMAT_3D, MEAN_T],
        infer: |infer| shape_input(infer, 5),
        gradient: Gradient::Defined(|s, f, d| mean_grad_grad(s, f, d, "AvgPool3D")),
        ..OF_MEANS
    },
    OpDef {
        name: "MaxPoolWithArgmax",
        outputs: &["output: T", "argmax: Targmax"],
        attrs: &[
            KSIZE,
            STRIDES,
            "Targmax: {int32, int64} = int64",
            PADDING,
            BATCH_IN_INDEX,
            "T: realnumbertype",
        ],
        infer: |infer| infer_forward(infer, &Pool::of(infer)?),
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None]) };
            let call = s.op("MaxPoolGradWithArgmax").input(f.input(0)).input(dy).input(f.output(1));
            Ok(vec![Some(with_attrs(f, call)?.output())])
        }),
        ..FORWARD
    },
    OpDef {
        name: "MaxPoolGradWithArgmax",
        inputs: &["input: T", "grad: T", "argmax: Targmax"],
        attrs: &[KSIZE, STRIDES, PADDING, BATCH_IN_INDEX, "Targmax: {int32, int64}", "T: realnumbertype"],
        infer: |infer| like_input(infer, 4),
        ..FORWARD
    },
    fractional::MAX,
    fractional::MAX_GRAD,
    fractional::MEAN,
    fractional::MEAN_GRAD,
];

/// The attributes of a pooling op, with sizes in the order `[batch, planes, rows, columns, channels]`. An image is
/// treated as a volume with one plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    pub ksize: [usize; 5],
    pub strides: [usize; 5],
    pub padding: Padding,
    pub format: DataFormat,
    /// True if the data are volumes, which have a plane axis in addition to rows and columns.
    pub volumes: bool,
}

/// The sizes of a pooling: the batch size, the windows along planes, rows and columns, and the number of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSizes {
    pub batch: usize,
    pub planes: Window,
    pub rows: Window,
    pub columns: Window,
    pub channels: usize,
}

const POSITIVE: &str = "Sliding window ksize and strides must be positive";

const NOT_OVER_BATCHES: &str = "Pooling is not yet supported on the batch dimension.";

impl Pool {
    /// Parses the attributes of a node that pools images.
    ///
    /// # Errors
    /// `InvalidArgument` or `Unimplemented` for attributes that TensorFlow rejects.
    pub fn of(node: &impl ReadAttr) -> Result<Pool> {
        let (ksize, strides): (Vec<i64>, Vec<i64>) = (node.read_attr("ksize")?, node.read_attr("strides")?);
        Pool::with(node, &ksize, &strides)
    }

    /// Like [`Pool::of`], for window sizes and strides that are inputs instead of attributes.
    pub fn with(node: &impl ReadAttr, ksize: &[i64], strides: &[i64]) -> Result<Pool> {
        // Only some of the pooling ops have the attribute `data_format`.
        let format = match node.read_attr::<String>("data_format") {
            Ok(format) => DataFormat::parse(&format)?,
            Err(_) => DataFormat::Nhwc,
        };
        let size = |values, what| -> Result<[usize; 5]> {
            let [n, h, w, c] = positive(values, format, what, POSITIVE)?;
            Ok([n, 1, h, w, c])
        };
        let ksize = size(ksize, "Sliding window ksize")?;
        if strides.len() == 4 && strides[0] != 1 {
            return Err(Error::unimplemented(NOT_OVER_BATCHES));
        }
        let kind: String = node.read_attr("padding")?;
        let explicit: Vec<i64> =
            if kind == "EXPLICIT" { node.read_attr("explicit_paddings")? } else { vec![] };
        let pool = Pool {
            ksize,
            strides: size(strides, "Sliding window strides")?,
            padding: Padding::parse(&kind, &explicit, format)?,
            format,
            volumes: false,
        };
        if let Padding::Explicit(pads) = pool.padding
            && pads.iter().zip(&pool.ksize[2..]).any(|(p, &k)| p[0] >= k || p[1] >= k)
        {
            crate::invalid!("explicit paddings must be smaller than the pooling window");
        }
        pool.not_over_batches()
    }

    /// Parses the attributes of a node that pools volumes.
    pub fn of_volumes(node: &impl ReadAttr) -> Result<Pool> {
        let format = DataFormat::parse_volumes(&node.read_attr::<String>("data_format")?)?;
        let (ksize, strides): (Vec<i64>, Vec<i64>) = (node.read_attr("ksize")?, node.read_attr("strides")?);
        let pool = Pool {
            ksize: positive(&ksize, format, "Sliding window ksize", POSITIVE)?,
            strides: positive(&strides, format, "Sliding window strides", POSITIVE)?,
            padding: Padding::parse(&node.read_attr::<String>("padding")?, &[], format)?,
            format,
            volumes: true,
        };
        pool.not_over_batches()
    }

    fn not_over_batches(self) -> Result<Pool> {
        if self.ksize[0] != 1 || self.strides[0] != 1 {
            return Err(Error::unimplemented(NOT_OVER_BATCHES));
        }
        if self.volumes && self.is_over_depth() {
            return Err(Error::unimplemented("Pooling is not yet supported on the depth dimension."));
        }
        Ok(self)
    }

    /// Returns whether the window spans channels. If it does not, the stride over channels is ignored.
    pub fn is_depthwise(&self) -> bool {
        self.ksize[4] > 1
    }

    /// Returns whether the window spans channels or moves over them, which gradients and volumes do not support.
    pub fn is_over_depth(&self) -> bool {
        self.is_depthwise() || self.strides[4] > 1
    }

    /// Returns the number of axes of the data.
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

    fn of_data<T: Copy>(&self, [n, d, h, w, c]: [T; 5]) -> SmallVec<[T; 5]> {
        if self.volumes {
            SmallVec::from_slice(&self.format.of_nhwc([n, d, h, w, c]))
        } else {
            SmallVec::from_slice(&self.format.of_nhwc([n, h, w, c]))
        }
    }

    /// Returns the window along a spatial axis: 0 planes, 1 rows, 2 columns.
    fn window(&self, input: usize, axis: usize) -> Result<Window> {
        let (ksize, stride) = (self.ksize[axis + 1], self.strides[axis + 1]);
        match axis {
            0 if !self.volumes => Window::new(1, 1, 1, 1, Padding::Valid, 0),
            _ => Window::new(input, ksize, stride, 1, self.padding, axis.saturating_sub(1)),
        }
    }

    /// Returns the sizes of the pooling of an input whose shape is given in the data format.
    pub fn sizes(&self, input: &[usize]) -> Result<PoolSizes> {
        let Some([batch, d, h, w, channels]) = self.data(input, 1) else {
            crate::invalid!("tensor_in must be {}-dimensional: {}", self.rank(), Shape::new(input)?);
        };
        Ok(PoolSizes {
            batch,
            planes: self.window(d, 0)?,
            rows: self.window(h, 1)?,
            columns: self.window(w, 2)?,
            channels,
        })
    }

    /// Like [`Pool::sizes`], with windows placed like in TensorFlow's forward kernels, which centre windows that do not
    /// cover a volume with SAME padding.
    pub fn forward_sizes(&self, input: &[usize]) -> Result<PoolSizes> {
        let sizes = self.sizes(input)?;
        if !self.volumes || self.padding != Padding::Same {
            return Ok(sizes);
        }
        let PoolSizes { planes, rows, columns, .. } = sizes;
        Ok(PoolSizes { planes: planes.centred(), rows: rows.centred(), columns: columns.centred(), ..sizes })
    }

    /// Returns the output's shape in the data format.
    pub fn output_shape(&self, sizes: &PoolSizes) -> Result<Shape> {
        let (d, h, w) = (sizes.planes.output, sizes.rows.output, sizes.columns.output);
        Shape::new(&self.of_data([sizes.batch, d, h, w, sizes.channels]))
    }
}

fn infer_forward(infer: &mut Infer<'_>, pool: &Pool) -> Result<()> {
    let x = infer.input_of_rank(0, pool.rank())?;
    let dims: SmallVec<[Dim; 5]> = (0..pool.rank()).map(|i| x.dim(i)).collect();
    let Some([batch, d, h, w, channels]) = pool.data(&dims, Some(1)) else { return Ok(()) };
    let axis = |input: Dim, i: usize| match input {
        Some(input) => Ok(Some(pool.window(input, i)?.output)),
        None => Ok::<_, Error>(None),
    };
    let depth = match channels {
        Some(c) => Some(Window::new(c, pool.ksize[4], pool.strides[4], 1, Padding::Valid, 0)?.output),
        None => None,
    };
    let out = pool.of_data([batch, axis(d, 0)?, axis(h, 1)?, axis(w, 2)?, depth]);
    infer.set_all(PartialShape::of_dims(out));
    Ok(())
}

fn like_input(infer: &mut Infer<'_>, rank: usize) -> Result<()> {
    let shape = infer.input_of_rank(0, rank)?;
    infer.set(0, shape);
    Ok(())
}

fn shape_input(infer: &mut Infer<'_>, rank: usize) -> Result<()> {
    let shape = infer.value_as_shape(0)?.with_rank(rank)?;
    infer.set(0, shape);
    Ok(())
}

fn max_grad(s: &Scope, f: &Forward, dy: &[Option<Output>], op: &str) -> Result<Vec<Option<Output>>> {
    let Some(dy) = dy[0] else { return Ok(vec![None]) };
    let call = s.op(op).input(f.input(0)).input(f.output(0)).input(dy);
    Ok(vec![Some(with_attrs(f, call)?.output())])
}

fn mean_grad(s: &Scope, f: &Forward, dy: &[Option<Output>], op: &str) -> Result<Vec<Option<Output>>> {
    let Some(dy) = dy[0] else { return Ok(vec![None]) };
    let shape = s.op("Shape").input(f.input(0)).output();
    Ok(vec![Some(with_attrs(f, s.op(op).input(shape).input(dy))?.output())])
}

fn mean_grad_grad(s: &Scope, f: &Forward, d: &[Option<Output>], op: &str) -> Result<Vec<Option<Output>>> {
    let Some(d) = d[0] else { return Ok(vec![None, None]) };
    Ok(vec![None, Some(with_attrs(f, s.op(op).input(d))?.output())])
}

/// Gradient of MaxPoolGrad: a small change of the images does not move the maxima, so only the third input has a
/// non-zero gradient.
fn max_grad_grad(s: &Scope, f: &Forward, d: &[Option<Output>], op: &str) -> Result<Vec<Option<Output>>> {
    let Some(d) = d[0] else { return Ok(vec![None; 3]) };
    let zeros = |i: usize| s.op("ZerosLike").input(f.input(i)).output();
    let call = s.op(op).input(f.input(0)).input(f.input(1)).input(d);
    Ok(vec![Some(zeros(0)), Some(zeros(1)), Some(with_attrs(f, call)?.output())])
}

/// Like [`max_grad_grad`], for ops whose window sizes and strides are inputs.
fn max_grad_grad_v2(s: &Scope, f: &Forward, d: &[Option<Output>], op: &str) -> Result<Vec<Option<Output>>> {
    let Some(d) = d[0] else { return Ok(vec![None; 5]) };
    let zeros = |i: usize| s.op("ZerosLike").input(f.input(i)).output();
    let call = s.op(op).input(f.input(0)).input(f.input(1)).input(d).input(f.input(3)).input(f.input(4));
    Ok(vec![Some(zeros(0)), Some(zeros(1)), Some(with_attrs(f, call)?.output()), None, None])
}

/// Copies attributes of the pooling node to `call`, a call of its gradient op; only attributes that the gradient op has
/// too.
fn with_attrs<'a>(f: &Forward, mut call: Call<'a>) -> Result<Call<'a>> {
    for name in ["ksize", "strides", "padding", "data_format", "explicit_paddings", "include_batch_in_index"]
    {
        if f.node.op.attr_spec(name).is_some() && call.takes_attr(name) {
            call = call.attr(name, f.attr::<AttrValue>(name)?);
        }
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
    fn output_sizes_follow_window_and_padding() -> Result<()> {
        let pool = Pool::of(&node([1, 3, 2, 1], [1, 2, 2, 1], "SAME"))?;
        let sizes = pool.sizes(&[2, 5, 4, 3])?;
        assert_eq!(pool.output_shape(&sizes)?.dims(), [2, 3, 2, 3]);
        assert!(pool.sizes(&[2, 5]).is_err());
        Ok(())
    }

    #[test]
    fn wrong_attributes_are_refused() {
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
