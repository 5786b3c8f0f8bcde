//! Softmax, and the cross entropies computed from it.

mod row;

use self::row::Exp;
use crate::numeric::dispatch::{FLOATS, INDEX, dispatch};
use crate::numeric::threads::{PARALLEL, for_parts, for_rows, rows_at_a_time};
use crate::numeric::widen::Float;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef};
use graph::{DType, PartialShape, Shape, Tensor};
use num_traits::Zero as _;

const FLOAT: &[(&str, &[DType])] = &[("T", FLOATS)];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Softmax", FLOAT, |i| {
        dispatch!(float, i.input_type(0), T => {
            Kernel::sync(|ctx| rows(ctx, |x, classes| map_rows::<T>(x, classes, row::softmax)))
        })
    }),
    KernelDef::of("LogSoftmax", FLOAT, |i| {
        dispatch!(float, i.input_type(0), T => {
            Kernel::sync(|ctx| rows(ctx, |x, classes| map_rows::<T>(x, classes, row::log_softmax)))
        })
    }),
    KernelDef::of(
        "SoftmaxCrossEntropyWithLogits",
        FLOAT,
        |i| dispatch!(float, i.input_type(0), T => Kernel::sync(|ctx| dense(ctx, write_dense::<T>))),
    ),
    KernelDef::of(
        "SparseSoftmaxCrossEntropyWithLogits",
        &[("T", FLOATS), ("Tlabels", INDEX)],
        |i| dispatch!(float, i.input_type(0), T => Kernel::sync(|ctx| sparse(ctx, write_sparse::<T>))),
    ),
];

/// Sets output 0 to input 0 after `map(tensor, row length)` has transformed all rows along the last axis; in place if
/// the buffer is not shared.
fn rows(ctx: &mut KernelContext<'_>, map: fn(&mut Tensor, usize) -> Result<()>) -> Result<()> {
    let mut logits = ctx.take_input(0)?;
    let Some(&classes) = logits.shape().last() else {
        device::invalid!("logits must have >= 1 dimension, got {}", logits.shape());
    };
    if logits.num_elements() == 0 {
        ctx.set_output(0, logits);
        return Ok(());
    }
    if !logits.is_unique() {
        let mut copy = ctx.allocate(logits.dtype(), logits.shape().clone())?;
        copy.bytes_mut()?.copy_from_slice(logits.bytes()?);
        logits = copy;
    }
    map(&mut logits, classes)?;
    ctx.set_output(0, logits);
    Ok(())
}

/// Applies `compute` to each row of `classes` elements.
fn map_rows<T: Float>(logits: &mut Tensor, classes: usize, compute: fn(&mut [T::Wide])) -> Result<()> {
    for_rows(logits.values_mut::<T>()?, classes, |_, rows| {
        let mut wide = vec![T::Wide::zero(); if T::NATIVE { 0 } else { classes }];
        for row in rows.chunks_exact_mut(classes) {
            if T::NATIVE {
                compute(bytemuck::cast_slice_mut(row));
            } else {
                T::widen(row, &mut wide);
                compute(&mut wide);
                T::narrow(&wide, row);
            }
        }
    });
    Ok(())
}

/// The outputs of a cross entropy: a loss per row, and the gradient of the logits.
struct Outputs {
    loss: Tensor,
    backprop: Tensor,
}

/// Computes the cross entropy against a distribution per row; features and labels are broadcast against each other.
/// `write` sets the outputs from the features and the labels.
fn dense(ctx: &mut KernelContext<'_>, write: fn(&Tensor, &Tensor, &mut Outputs) -> Result<()>) -> Result<()> {
    let (features, labels) = (ctx.input(0)?, ctx.input(1)?);
    let Ok(shape) = PartialShape::broadcast(&features.shape().into(), &labels.shape().into()) else {
        device::invalid!(
            "logits and labels must be broadcastable: logits_size={} labels_size={}",
            features.shape(),
            labels.shape()
        );
    };
    let Some(&[Some(batch), Some(classes)]) = shape.dims() else {
        device::invalid!(
            "logits and labels must be either 2-dimensional, or broadcasted to be 2-dimensional"
        );
    };
    let loss = Tensor::zeros(features.dtype(), Shape::new(&[batch])?)?;
    let backprop = ctx.allocate(features.dtype(), Shape::new(&[batch, classes])?)?;
    let mut outputs = Outputs { loss, backprop };
    if batch > 0 && classes > 0 {
        write(features, labels, &mut outputs)?;
    }
    ctx.set_output(0, outputs.loss);
    ctx.set_output(1, outputs.backprop);
    Ok(())
}

fn write_dense<T: Float<Wide: Exp>>(features: &Tensor, labels: &Tensor, outputs: &mut Outputs) -> Result<()> {
    let (features, labels) = (Rows::<T>::of(features)?, Rows::<T>::of(labels)?);
    each_row::<T>(outputs, &|i, scratch, more| {
        features.load(i, scratch);
        labels.load(i, more);
        row::dense(scratch, more)
    })
}

/// Computes the cross entropy against one class per row. `write` sets the outputs from the logits and the classes.
fn sparse(ctx: &mut KernelContext<'_>, write: fn(&Tensor, &[i64], &mut Outputs) -> Result<()>) -> Result<()> {
    let (logits, labels) = (ctx.input(0)?, ctx.input(1)?);
    let &[batch, classes] = logits.shape().dims() else {
        device::invalid!("logits must be 2-D, but got shape {}", logits.shape());
    };
    if labels.shape().rank() != 1 {
        device::invalid!("labels must be 1-D, but got shape {}", labels.shape());
    }
    if labels.num_elements() != batch {
        device::invalid!(
            "logits and labels must have the same first dimension, got logits shape {} and labels shape {}",
            logits.shape(),
            labels.shape()
        );
    }
    if classes == 0 {
        device::invalid!("Must have at least one class, but got logits shape {}", logits.shape());
    }
    let indices = labels.to_i64s()?;
    if let Some(wrong) = indices.iter().find(|&&l| l < 0 || l as u64 >= classes as u64) {
        device::invalid!(
            "Received a label value of {wrong} which is outside the valid range of [0, {classes}).  Label values: {}",
            labels.summarize(1000)
        );
    }
    let loss = ctx.allocate(logits.dtype(), Shape::new(&[batch])?)?;
    let backprop = ctx.allocate(logits.dtype(), logits.shape().clone())?;
    let mut outputs = Outputs { loss, backprop };
    write(logits, &indices, &mut outputs)?;
    ctx.set_output(0, outputs.loss);
    ctx.set_output(1, outputs.backprop);
    Ok(())
}

fn write_sparse<T: Float<Wide: Exp>>(logits: &Tensor, classes: &[i64], outputs: &mut Outputs) -> Result<()> {
    let logits = Rows::<T>::of(logits)?;
    each_row::<T>(outputs, &|i, scratch, _| {
        logits.load(i, scratch);
        row::sparse(scratch, classes[i] as usize)
    })
}

/// A function that computes one row, given its index and two scratch rows: it returns the row's loss, and leaves the
/// row of the gradient in the first scratch row.
type ComputeRow<'a, W> = dyn Fn(usize, &mut [W], &mut [W]) -> W + Sync + 'a;

/// Sets the loss and the gradient of each row to the results of `compute`; there is at least one class.
fn each_row<T: Float>(outputs: &mut Outputs, compute: &ComputeRow<'_, T::Wide>) -> Result<()> {
    let classes = outputs.backprop.shape()[1];
    let (losses, rows) = (outputs.loss.values_mut::<T>()?, outputs.backprop.values_mut::<T>()?);
    let is_parallel = rows.len() >= PARALLEL;
    let chunk = if is_parallel { rows_at_a_time(classes) } else { losses.len().max(1) };
    let mut parts: Vec<_> = losses.chunks_mut(chunk).zip(rows.chunks_mut(chunk * classes)).collect();
    for_parts(&mut parts, 1, is_parallel, |at, part| {
        let (mut scratch, mut more) = (vec![T::Wide::zero(); classes], vec![T::Wide::zero(); classes]);
        for (losses, rows) in part {
            for (i, (loss, row)) in losses.iter_mut().zip(rows.chunks_exact_mut(classes)).enumerate() {
                *loss = T::of_wide(compute(at * chunk + i, &mut scratch, &mut more));
                T::narrow(&scratch, row);
            }
        }
    });
    Ok(())
}

/// The rows of a matrix, or of a tensor that is broadcast to a matrix.
struct Rows<'a, T> {
    values: &'a [T],
    width: usize,
    count: usize,
}

impl<'a, T: Float> Rows<'a, T> {
    fn of(matrix: &'a Tensor) -> Result<Rows<'a, T>> {
        let width = matrix.shape().last().copied().unwrap_or(1);
        let values = matrix.values::<T>()?;
        Ok(Rows { values, width, count: values.len() / width.max(1) })
    }

    fn load(&self, i: usize, to: &mut [T::Wide]) {
        let start = if self.count == 1 { 0 } else { i * self.width };
        match &self.values[start..start + self.width] {
            [one] => to.fill(one.to_wide()),
            row => T::widen(row, to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run_op;
    use graph::{AttrValue, Code};
    use half::{bf16, f16};

    fn t(dtype: DType) -> Vec<(&'static str, AttrValue)> {
        vec![("T", dtype.into())]
    }

    fn close(actual: &Tensor, expected: &[f32]) -> Result<()> {
        let actual = actual.values::<f32>()?;
        assert_eq!(actual.len(), expected.len());
        for (a, e) in actual.iter().zip(expected) {
            let same = a == e || (a.is_nan() && e.is_nan()) || (a - e).abs() <= 1e-5 * e.abs();
            assert!(same, "{actual:?} is not {expected:?}");
        }
        Ok(())
    }

    const INF: f32 = f32::INFINITY;
    const NAN: f32 = f32::NAN;

    #[test]
    fn softmax_and_its_logarithm() -> Result<()> {
        let x = Tensor::try_from([[1.0f32, 2.0, 3.0], [-INF, 1.0, 2.0], [1000.0, 1000.0, 0.0]])?;
        let y = run_op("Softmax", std::slice::from_ref(&x), &t(DType::Float))?;
        close(&y[0], &[0.09003057, 0.24472848, 0.66524094, 0.0, 0.26894143, 0.73105854, 0.5, 0.5, 0.0])?;
        let y = run_op("LogSoftmax", &[x], &t(DType::Float))?;
        let ln_2 = std::f32::consts::LN_2;
        let row = [-ln_2, -ln_2, -1000.6931];
        close(
            &y[0],
            &[&[-2.407606, -1.4076059, -0.407606, -INF, -1.3132616, -0.313_261_7], &row[..]].concat(),
        )
    }

    #[test]
    fn rows_without_a_largest_element() -> Result<()> {
        let x = Tensor::try_from([[-INF, -INF], [INF, 1.0], [NAN, 1.0]])?;
        let y = run_op("LogSoftmax", &[x], &t(DType::Float))?;
        close(&y[0], &[NAN; 6])
    }

    #[test]
    fn long_rows_and_many_rows() -> Result<()> {
        for (rows, classes) in [(3, 1001), (70_000, 10), (3, 200_000)] {
            let logits: Vec<f32> = (0..rows * classes).map(|i| ((i * 7919) % 1000) as f32 * 0.01).collect();
            let x = Tensor::from_slice(&logits, Shape::new(&[rows, classes])?)?;
            let y = run_op("Softmax", &[x], &t(DType::Float))?;
            for (x, y) in logits.chunks(classes).zip(y[0].values::<f32>()?.chunks(classes)).step_by(rows / 3)
            {
                let sum: f64 = x.iter().map(|&x| f64::from(x).exp()).sum();
                let close =
                    |(x, y): (&f32, &f32)| (f64::from(*y) / (f64::from(*x).exp() / sum) - 1.0).abs() < 1e-5;
                assert!(x.iter().zip(y).all(close));
            }
        }
        Ok(())
    }

    #[test]
    fn softmax_of_other_dtypes_and_ranks() -> Result<()> {
        let x = Tensor::from_slice(&[0.0f64, 0.0, 1.0, 1.0], Shape::new(&[1, 2, 1, 2])?)?;
        let y = run_op("Softmax", &[x], &t(DType::Double))?;
        assert_eq!(y[0].values::<f64>()?, [0.5; 4]);
        assert_eq!(y[0].shape().dims(), [1, 2, 1, 2]);
        let x = Tensor::try_from([f16::ZERO, f16::ZERO])?;
        assert_eq!(run_op("Softmax", &[x], &t(DType::Half))?[0].values::<f16>()?, [f16::from_f32(0.5); 2]);
        let x = Tensor::try_from([bf16::ZERO; 2])?;
        assert_eq!(
            run_op("Softmax", &[x], &t(DType::BFloat16))?[0].values::<bf16>()?,
            [bf16::from_f32(0.5); 2]
        );
        for empty in [[0, 3], [3, 0]] {
            let y =
                run_op("Softmax", &[Tensor::zeros(DType::Float, Shape::new(&empty)?)?], &t(DType::Float))?;
            assert_eq!(y[0].shape().dims(), empty);
        }
        let scalar = run_op("Softmax", &[Tensor::scalar(1f32)], &t(DType::Float));
        assert!(scalar.is_err_and(|e| e.code() == Code::InvalidArgument));
        Ok(())
    }

    #[test]
    fn dense_cross_entropy() -> Result<()> {
        let op = "SoftmaxCrossEntropyWithLogits";
        let x = Tensor::try_from([[-INF, 1.0, 2.0]])?;
        let y = run_op(op, &[x.clone(), Tensor::try_from([[1.0f32, 0.0, 0.0]])?], &t(DType::Float))?;
        close(&y[0], &[INF])?;
        close(&y[1], &[-1.0, 0.26894143, 0.7310586])?;
        let y = run_op(op, &[x, Tensor::try_from([[0.0f32, 0.0, 1.0]])?], &t(DType::Float))?;
        close(&y[0], &[NAN])?;
        let features = Tensor::try_from([[0.0f32, 1.0, 2.0], [3.0, 3.0, 3.0]])?;
        let y = run_op(op, &[features, Tensor::try_from([0.2f32, 0.3, 0.5])?], &t(DType::Float))?;
        close(&y[0], &[1.1076059, 1.0986123])?;
        close(&y[1], &[-0.10996944, -0.05527154, 0.16524094, 0.13333334, 0.033333313, -0.16666666])
    }

    #[test]
    fn dense_cross_entropy_broadcasts_both_ways() -> Result<()> {
        let op = "SoftmaxCrossEntropyWithLogits";
        let column = Tensor::try_from([[0.0f32], [1.0]])?;
        let y = run_op(op, &[column, Tensor::try_from([[0.0f32, 0.0, 1.0]])?], &t(DType::Float))?;
        close(&y[0], &[1.0986123; 2])?;
        let third = 1.0 / 3.0;
        close(&y[1], &[third, third, third - 1.0, third, third, third - 1.0])?;
        let shapes: [(&[usize], &[usize]); 3] = [(&[2, 3], &[2, 4]), (&[3], &[3]), (&[1, 2, 3], &[2, 3])];
        for (a, b) in shapes {
            let z = |s: &[usize]| Tensor::zeros(DType::Float, Shape::new(s)?);
            let out = run_op(op, &[z(a)?, z(b)?], &t(DType::Float));
            assert!(out.is_err_and(|e| e.code() == Code::InvalidArgument));
        }
        let none = Tensor::zeros(DType::Float, Shape::new(&[3, 0])?)?;
        let y = run_op(op, &[none.clone(), none], &t(DType::Float))?;
        close(&y[0], &[0.0; 3])
    }

    fn sparse_op(logits: Tensor, labels: Tensor) -> Result<Vec<Tensor>> {
        let attrs = [("T", logits.dtype().into()), ("Tlabels", labels.dtype().into())];
        run_op("SparseSoftmaxCrossEntropyWithLogits", &[logits, labels], &attrs)
    }

    #[test]
    fn sparse_cross_entropy() -> Result<()> {
        let x = Tensor::try_from([[-INF, 1.0, 2.0], [-INF, 1.0, 2.0]])?;
        let y = sparse_op(x, Tensor::try_from([2i64, 0])?)?;
        close(&y[0], &[0.31326166, INF])?;
        close(&y[1], &[0.0, 0.26894143, -0.2689414, -1.0, 0.26894143, 0.7310586])?;
        let x = Tensor::try_from([[0.0f64, 0.0]])?;
        let y = sparse_op(x, Tensor::try_from([1i32])?)?;
        assert_eq!(y[0].values::<f64>()?, [2f64.ln()]);
        assert_eq!(y[1].values::<f64>()?, [0.5, -0.5]);
        let y = sparse_op(Tensor::zeros(DType::Float, Shape::new(&[0, 3])?)?, Tensor::vector::<i32>(&[])?)?;
        assert_eq!((y[0].num_elements(), y[1].shape().dims()), (0, &[0, 3][..]));
        let many = sparse_op(
            Tensor::zeros(DType::Float, Shape::new(&[100_000, 4])?)?,
            Tensor::from_slice(&(0..100_000).map(|i| i % 4).collect::<Vec<i32>>(), Shape::new(&[100_000])?)?,
        )?;
        close(&many[0], &vec![4f32.ln(); 100_000])?;
        assert!(many[1].values::<f32>()?.chunks(4).enumerate().all(|(i, row)| row[i % 4] == -0.75));
        Ok(())
    }

    #[test]
    fn labels_out_of_range() -> Result<()> {
        let logits = || Tensor::zeros(DType::Float, Shape::new(&[2, 3])?);
        let message = |labels: Tensor| -> Result<(Code, String)> {
            Ok(sparse_op(logits()?, labels)
                .err()
                .map_or((Code::Ok, String::new()), |e| (e.code(), e.to_string())))
        };
        let range =
            "Received a label value of 3 which is outside the valid range of [0, 3).  Label values: 0 3";
        assert_eq!(message(Tensor::try_from([0i64, 3])?)?, (Code::InvalidArgument, range.to_owned()));
        assert!(message(Tensor::try_from([-1i64, 0])?)?.1.starts_with("Received a label value of -1 which"));
        assert_eq!(
            message(Tensor::try_from([0i64])?)?.1,
            "logits and labels must have the same first dimension, got logits shape [2,3] and labels shape [1]"
        );
        assert_eq!(message(Tensor::try_from([[0i64, 1]])?)?.1, "labels must be 1-D, but got shape [1,2]");
        let no_class =
            sparse_op(Tensor::zeros(DType::Float, Shape::new(&[2, 0])?)?, Tensor::try_from([0i64, 0])?);
        assert!(
            no_class
                .is_err_and(|e| e.to_string() == "Must have at least one class, but got logits shape [2,0]")
        );
        Ok(())
    }
}
