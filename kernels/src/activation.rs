//! Activation functions of neural networks.

use crate::numeric::broadcast::{Plan, Zip, ZipFunction, zip_tensors, zip_with};
use crate::numeric::dispatch::{FLOATS, REALS, dispatch};
use crate::numeric::elementwise;
use crate::numeric::elementwise::map_with;
use crate::numeric::scalar::{Number, Real, Semiring as _};
use crate::numeric::threads::Cost;
use crate::numeric::threads::Cost::{Cheap, Expensive};
use crate::numeric::widen::{Float, Lane, LaneType};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::{DType, Element as _, Shape, Tensor};

const SCALE: f64 = 1.050_700_987_355_480_5;
const SCALE_ALPHA: f64 = 1.758_099_340_847_376_9;

const FLOAT: &[(&str, &[DType])] = &[("T", FLOATS)];
const REAL: &[(&str, &[DType])] = &[("T", REALS)];

/// Defines the kernel of an activation function: output 0 is `$function` of each element of input 0.
macro_rules! kernel {
    ($op:literal, $types:expr, $group:ident, $cost:ident, $function:ident) => {
        KernelDef::of($op, $types, |i| {
            let map = dispatch!($group, i.input_type(0), T => {
                Ok((|out, x| map_with(out, x, $function::<<T as Lane>::Wide>)) as fn(&mut [u8], &[u8]))
            });
            elementwise::map_kernel([i.input_type(0); 2], $cost, map?)
        })
    };
}

/// Defines the kernel of an activation's gradient: input 0 is the incoming gradient, input 1 the activation's input or
/// its output.
macro_rules! gradient {
    ($op:literal, $types:expr, $group:ident, $cost:ident, $function:ident) => {
        KernelDef::of($op, $types, |i| {
            let zip = dispatch!($group, i.input_type(0), T => {
                Ok((|out, x, y| zip_with(out, x, y, $function::<<T as Lane>::Wide>)) as ZipFunction)
            });
            gradient_kernel(i.input_type(0), $cost, zip?)
        })
    };
}

pub(super) const KERNELS: &[KernelDef] = &[
    kernel!("Relu", REAL, real, Cheap, relu),
    kernel!("Relu6", REAL, real, Cheap, relu6),
    kernel!("Elu", FLOAT, float, Expensive, elu),
    kernel!("Selu", FLOAT, float, Expensive, selu),
    kernel!("Softplus", FLOAT, float, Expensive, softplus),
    kernel!("Softsign", FLOAT, float, Cheap, softsign),
    gradient!("ReluGrad", REAL, real, Cheap, relu_gradient),
    gradient!("Relu6Grad", REAL, real, Cheap, relu6_gradient),
    gradient!("EluGrad", FLOAT, float, Cheap, elu_gradient),
    gradient!("SeluGrad", FLOAT, float, Cheap, selu_gradient),
    gradient!("SoftplusGrad", FLOAT, float, Expensive, softplus_gradient),
    gradient!("SoftsignGrad", FLOAT, float, Cheap, softsign_gradient),
    KernelDef::of("LeakyRelu", FLOAT, |i| {
        dispatch!(float, i.input_type(0), T => {
            let alpha = alpha::<T>(i)?;
            let op = move |x: <T as Lane>::Wide| if x > zero::<T>() { x } else { x * alpha };
            Kernel::sync(move |ctx| {
                elementwise::unary(ctx, [LaneType::of(T::DTYPE); 2], Cheap, &|out, x| map_with(out, x, op))
            })
        })
    }),
    KernelDef::of("LeakyReluGrad", FLOAT, |i| {
        dispatch!(float, i.input_type(0), T => {
            let alpha = alpha::<T>(i)?;
            let op = move |g, x: <T as Lane>::Wide| if x > zero::<T>() { g } else { g * alpha };
            Kernel::sync(move |ctx| zip(ctx, T::DTYPE, Cheap, &|out, x, y| zip_with(out, x, y, op)))
        })
    }),
    KernelDef::of("L2Loss", FLOAT, |i| dispatch!(float, i.input_type(0), T => Kernel::sync(l2_loss::<T>))),
];

/// A number type, integer or floating-point, in which the rectifiers compute.
pub(super) trait Rectifiable: Number {
    const SIX: Self;
}

macro_rules! rectifiable {
    ($($t:ty = $six:expr),*) => { $(impl Rectifiable for $t { const SIX: $t = $six; })* };
}

rectifiable! { f32 = 6.0, f64 = 6.0, i8 = 6, i16 = 6, i32 = 6, i64 = 6, u8 = 6, u16 = 6, u32 = 6, u64 = 6 }

/// Returns `max(x, 0)`, and NaN if `x` is NaN, because `x <= 0` is then false.
#[inline(always)]
pub(super) fn relu<W: Rectifiable>(x: W) -> W {
    if x <= W::ZERO { W::ZERO } else { x }
}

/// Returns the gradient of [`relu`], given the incoming gradient and the activation's input.
#[inline(always)]
pub(super) fn relu_gradient<W: Number>(gradient: W, x: W) -> W {
    masked(gradient, x > W::ZERO)
}

/// Returns `min(max(x, 0), 6)`.
#[inline(always)]
pub(super) fn relu6<W: Rectifiable>(x: W) -> W {
    let y = relu(x);
    if y > W::SIX { W::SIX } else { y }
}

/// Returns the gradient of [`relu6`], given the incoming gradient and the activation's input.
#[inline(always)]
pub(super) fn relu6_gradient<W: Rectifiable>(gradient: W, x: W) -> W {
    masked(gradient, x > W::ZERO && x < W::SIX)
}

/// Returns `gradient` times 1 if `open`, else `gradient` times 0, so that a NaN gradient stays NaN in both cases.
#[inline(always)]
fn masked<W: Number>(gradient: W, open: bool) -> W {
    gradient.times(if open { W::ONE } else { W::ZERO })
}

/// Returns `x` if positive, else `exp(x) - 1`.
#[inline(always)]
pub(super) fn elu<W: Real>(x: W) -> W {
    if x < W::ZERO { x.exp_m1() } else { x }
}

/// Returns the gradient of [`elu`], given the incoming gradient and the activation's output.
#[inline(always)]
pub(super) fn elu_gradient<W: Real>(gradient: W, y: W) -> W {
    if y < W::ZERO { (y + W::ONE) * gradient } else { gradient }
}

/// Returns the scaled exponential linear unit of `x`.
#[inline(always)]
pub(super) fn selu<W: Real>(x: W) -> W {
    if x < W::ZERO { W::of(SCALE_ALPHA) * x.exp_m1() } else { W::of(SCALE) * x }
}

/// Returns the gradient of [`selu`], given the incoming gradient and the activation's output.
#[inline(always)]
pub(super) fn selu_gradient<W: Real>(gradient: W, y: W) -> W {
    if y < W::ZERO { gradient * (y + W::of(SCALE_ALPHA)) } else { gradient * W::of(SCALE) }
}

/// Returns `ln(1 + exp(x))`. For large `x` returns `x`, and for very negative `x` returns `exp(x)`; both are equal to
/// the logarithm up to rounding.
#[inline(always)]
pub(super) fn softplus<W: Real>(x: W) -> W {
    let threshold = W::epsilon().ln() + W::of(2.0);
    if x > -threshold {
        x
    } else if x < threshold {
        x.exp()
    } else {
        x.exp().ln_1p()
    }
}

/// Returns the gradient of [`softplus`], given the incoming gradient and the activation's input.
#[inline(always)]
pub(super) fn softplus_gradient<W: Real>(gradient: W, x: W) -> W {
    gradient / ((-x).exp() + W::ONE)
}

/// Returns `x / (1 + |x|)`.
#[inline(always)]
pub(super) fn softsign<W: Real>(x: W) -> W {
    x / (W::ONE + x.abs())
}

/// Returns the gradient of [`softsign`], given the incoming gradient and the activation's input.
#[inline(always)]
pub(super) fn softsign_gradient<W: Real>(gradient: W, x: W) -> W {
    let s = W::ONE + x.abs();
    gradient / (s * s)
}

#[inline(always)]
fn zero<T: Lane<Wide: Number>>() -> T::Wide {
    T::Wide::ZERO
}

fn alpha<T: Float>(init: &KernelInit<'_>) -> Result<T::Wide> {
    Ok(T::Wide::of(init.attr::<f32>("alpha")?.into()))
}

/// Makes a kernel that sets output 0 to `function` of inputs 0 and 1, which must have equal shapes.
fn gradient_kernel(dtype: DType, cost: Cost, function: ZipFunction) -> Result<Kernel> {
    Kernel::sync(move |ctx| zip(ctx, dtype, cost, &function))
}

/// Sets output 0 to `zip` of inputs 0 and 1, which must have equal shapes.
fn zip(ctx: &mut KernelContext<'_>, dtype: DType, cost: Cost, zip: &Zip<'_>) -> Result<()> {
    let (x, y) = (ctx.take_input(0)?, ctx.take_input(1)?);
    if x.shape() != y.shape() {
        let (name, op) = (&ctx.node().name, ctx.node().op.name());
        device::invalid!(
            "Inputs to operation {name} of type {op} must have the same size and shape.  Input 0: {} != input 1: \
             {}",
            x.shape(),
            y.shape()
        );
    }
    let plan = Plan::flat(x.shape());
    let out = zip_tensors(&plan, [x, y], [LaneType::of(dtype); 2], cost, zip)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Computes half the sum of squares. The sums of blocks are added, so that the rounding error does not grow with the
/// number of elements.
fn l2_loss<T: Float>(ctx: &mut KernelContext<'_>) -> Result<()> {
    const LANES: usize = 16;
    let x = ctx.input(0)?.values::<T>()?;
    let block = |block: &[T]| {
        let mut lanes = [zero::<T>(); LANES];
        let (whole, rest) = block.as_chunks::<LANES>();
        for values in whole {
            for (lane, v) in lanes.iter_mut().zip(values) {
                *lane += v.to_wide() * v.to_wide();
            }
        }
        lanes.into_iter().sum::<T::Wide>() + rest.iter().map(|v| v.to_wide() * v.to_wide()).sum::<T::Wide>()
    };
    let sums: Vec<T::Wide> = x.chunks(4096).map(block).collect();
    let total = pairwise_sum(&sums) / T::Wide::of(2.0);
    let mut out = Tensor::unspecified(T::DTYPE, Shape::scalar())?;
    out.values_mut::<T>()?[0] = T::of_wide(total);
    ctx.set_output(0, out);
    Ok(())
}

fn pairwise_sum<W: Real>(values: &[W]) -> W {
    let mut sums = values.to_vec();
    while sums.len() > 1 {
        sums = sums.chunks(2).map(|pair| pair.iter().copied().sum()).collect();
    }
    sums.first().copied().unwrap_or_else(W::zero)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run_op;
    use graph::AttrValue;
    use half::f16;

    fn run(op: &str, inputs: &[&[f32]], attrs: &[(&str, AttrValue)]) -> Result<Vec<f32>> {
        let inputs = inputs.iter().map(|v| Tensor::vector(v)).collect::<graph::Result<Vec<_>>>()?;
        let mut attrs = attrs.to_vec();
        attrs.push(("T", DType::Float.into()));
        Ok(run_op(op, &inputs, &attrs)?[0].values::<f32>()?.to_vec())
    }

    fn check(op: &str, inputs: &[&[f32]], expected: &[f32]) -> Result<()> {
        let actual = run(op, inputs, &[])?;
        assert_eq!(actual.len(), expected.len(), "{op}");
        for (a, e) in actual.iter().zip(expected) {
            let same = a == e || (a.is_nan() && e.is_nan()) || (a - e).abs() <= 1e-5 * e.abs();
            assert!(same, "{op}: {actual:?} is not {expected:?}");
        }
        Ok(())
    }

    const X: &[f32] = &[f32::NAN, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, 0.0, 7.0, 3.0, -2.0];
    const G: &[f32] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, f32::NAN, 8.0, f32::NAN];
    const NAN: f32 = f32::NAN;
    const INF: f32 = f32::INFINITY;

    #[test]
    fn values_as_tensorflow_gives_them() -> Result<()> {
        check("Relu", &[X], &[NAN, 1.0, 0.0, INF, 0.0, 0.0, 7.0, 3.0, 0.0])?;
        check("Relu6", &[X], &[NAN, 1.0, 0.0, 6.0, 0.0, 0.0, 6.0, 3.0, 0.0])?;
        check("LeakyRelu", &[X], &[NAN, 1.0, -0.2, INF, -INF, 0.0, 7.0, 3.0, -0.4])?;
        check("Elu", &[X], &[NAN, 1.0, -0.632_120_55, INF, -1.0, 0.0, 7.0, 3.0, -0.864_664_73])?;
        let selu = [NAN, 1.050701, -1.1113307, INF, -1.758_099_3, 0.0, 7.354907, 3.152103, -1.520_166_5];
        check("Selu", &[X], &selu)?;
        let softplus = [NAN, 1.3132616, 0.3132617, INF, 0.0, std::f32::consts::LN_2, 7.000_911_7, 3.048587];
        check("Softplus", &[&X[..8]], &softplus)?;
        check("Softsign", &[X], &[NAN, 0.5, -0.5, NAN, NAN, 0.0, 0.875, 0.75, -0.666_666_7])
    }

    #[test]
    fn gradients_as_tensorflow_gives_them() -> Result<()> {
        check("ReluGrad", &[G, X], &[0.0, 2.0, 0.0, 4.0, 0.0, 0.0, NAN, 8.0, NAN])?;
        check("Relu6Grad", &[G, X], &[0.0, 2.0, 0.0, 0.0, 0.0, 0.0, NAN, 8.0, NAN])?;
        check("LeakyReluGrad", &[G, X], &[0.2, 2.0, 0.6, 4.0, 1.0, 1.2, NAN, 8.0, NAN])?;
        check("EluGrad", &[G, X], &[1.0, 2.0, 0.0, 4.0, -INF, 6.0, NAN, 8.0, NAN])?;
        let selu = [1.050701, 2.101402, 2.274298, 4.202804, -INF, 6.304206, NAN, 8.405608, NAN];
        check("SeluGrad", &[G, X], &selu)?;
        let softplus = [NAN, 1.4621172, 0.80682427, 4.0, 0.0, 3.0, NAN, 7.6205935, NAN];
        check("SoftplusGrad", &[G, X], &softplus)?;
        check("SoftsignGrad", &[G, X], &[NAN, 0.5, 0.75, 0.0, 0.0, 6.0, NAN, 0.5, NAN])
    }

    #[test]
    fn leaky_relu_slope_may_exceed_one() -> Result<()> {
        let alpha: &[(&str, AttrValue)] = &[("alpha", 2.0f32.into())];
        assert_eq!(run("LeakyRelu", &[&[1.0, -1.0]], alpha)?, [1.0, -2.0]);
        assert_eq!(run("LeakyReluGrad", &[&[1.0, 1.0], &[1.0, -1.0]], alpha)?, [1.0, 2.0]);
        Ok(())
    }

    #[test]
    fn integers_and_halves() -> Result<()> {
        let t = |d: DType| [("T", AttrValue::from(d))];
        let x = Tensor::try_from([-3i8, 3, 9])?;
        assert_eq!(run_op("Relu6", &[x], &t(DType::Int8))?[0].values::<i8>()?, [0, 3, 6]);
        let (g, x) = (Tensor::try_from([3u8, 4])?, Tensor::try_from([0u8, 2])?);
        assert_eq!(run_op("ReluGrad", &[g, x], &t(DType::UInt8))?[0].values::<u8>()?, [0, 4]);
        let x = Tensor::try_from([f16::from_f32(-1.0), f16::from_f32(2.5)])?;
        let y = run_op("Elu", &[x], &t(DType::Half))?;
        assert_eq!(y[0].values::<f16>()?, [f16::from_f32(-0.632_120_55), f16::from_f32(2.5)]);
        Ok(())
    }

    #[test]
    fn shared_inputs_are_not_written() -> Result<()> {
        let x = Tensor::try_from([-1.0f32, 2.0])?;
        run_op("Relu", std::slice::from_ref(&x), &[("T", DType::Float.into())])?;
        run_op("ReluGrad", &[x.clone(), x.clone()], &[("T", DType::Float.into())])?;
        assert_eq!(x.values::<f32>()?, [-1.0, 2.0]);
        Ok(())
    }

    #[test]
    fn long_inputs_are_split_among_threads() -> Result<()> {
        let x: Vec<f32> = (0..crate::numeric::threads::PARALLEL * 4 + 7).map(|i| i as f32 - 1000.0).collect();
        let y = run("Relu", &[&x], &[])?;
        let g = run("ReluGrad", &[&x, &x], &[])?;
        assert!(x.iter().zip(&y).zip(&g).all(|((x, y), g)| x.max(0.0) == *y && y == g));
        Ok(())
    }

    #[test]
    fn l2_loss_of_many_elements() -> Result<()> {
        check("L2Loss", &[&[3.0, 4.0]], &[12.5])?;
        check("L2Loss", &[&[]], &[0.0])?;
        check("L2Loss", &[&vec![0.1; 1_000_000]], &[5000.0])?;
        let out = run_op("L2Loss", &[Tensor::try_from([2.0f64])?], &[("T", DType::Double.into())])?;
        assert_eq!((out[0].shape().rank(), out[0].item::<f64>()?), (0, 2.0));
        Ok(())
    }

    #[test]
    fn gradients_of_mismatched_shapes_are_refused() {
        let error = run("ReluGrad", &[&[1.0, 2.0], &[1.0]], &[]);
        assert!(error.is_err_and(|e| e.code() == graph::Code::InvalidArgument
            && e.to_string().contains("Input 0: [2] != input 1: [1]")));
    }
}
