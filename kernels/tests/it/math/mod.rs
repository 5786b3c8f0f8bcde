//! Tests of the CPU kernels of arithmetic, comparisons, casts, reductions and matrix products against TensorFlow's
//! values and error messages.

mod binary;
mod cast;
mod compare;
mod coverage;
mod matmul;
mod reduce;
mod unary;

use anabranch_kernels::testing::run_node;
use device::{Error, Result, Value};
use graph::{AttrValue, Code, DType, Element, Node, Shape, Tensor};

/// Returns the output of an op whose attribute `T` is the first input's dtype. The op runs twice, with inputs that are
/// shared and with inputs whose memory the op may overwrite, and must give equal outputs.
fn run(op: &str, inputs: &[Tensor], attrs: &[(&str, AttrValue)]) -> Result<Tensor> {
    let op = graph::ops::lookup(op).ok_or_else(|| Error::invalid(format!("no op {op}")))?;
    let mut node = Node::new("test", op);
    if op.attr_spec("T").is_some()
        && let Some(input) = inputs.first()
    {
        node.attrs.set("T", input.dtype());
    }
    for (name, value) in attrs {
        node.attrs.set(name, value.clone());
    }
    let shared = inputs.iter().cloned().map(Value::Host).collect();
    let own = inputs.iter().map(|t| Ok(Value::Host(copied(t)?))).collect::<Result<Vec<_>>>()?;
    let first = only(run_node(&node, shared)?)?;
    assert_eq!(first, only(run_node(&node, own)?)?, "{} in place", op.name());
    Ok(first)
}

fn copied(t: &Tensor) -> Result<Tensor> {
    match t.bytes() {
        Ok(bytes) => Ok(Tensor::from_bytes(t.dtype(), t.shape().clone(), bytes)?),
        Err(_) => Ok(Tensor::strings(t.as_strings()?.to_vec(), t.shape().clone())?),
    }
}

fn only(outputs: Vec<Value>) -> Result<Tensor> {
    match outputs.into_iter().next() {
        Some(Value::Host(tensor)) => Ok(tensor),
        other => Err(Error::internal(format!("output is {other:?}"))),
    }
}

fn values<T: Element>(op: &str, inputs: &[Tensor], attrs: &[(&str, AttrValue)]) -> Result<Vec<T>> {
    Ok(run(op, inputs, attrs)?.values::<T>()?.to_vec())
}

fn tensor<T: Element>(dims: &[usize], values: &[T]) -> Result<Tensor> {
    Ok(Tensor::from_slice(values, Shape::new(dims)?)?)
}

/// Returns a tensor of the numbers 0, 1, 2, … with the dimensions `dims`.
fn counting(dims: &[usize]) -> Result<Tensor> {
    let shape = Shape::new(dims)?;
    let values: Vec<f32> = (0..shape.num_elements()).map(|i| i as f32).collect();
    Ok(Tensor::from_slice(&values, shape)?)
}

fn assert_fails(result: Result<Tensor>, code: Code, message: &str) {
    match result {
        Ok(t) => panic!("should have failed with '{message}', gave {t}"),
        Err(e) => assert_eq!((e.code(), e.to_string().as_str()), (code, message)),
    }
}

/// Asserts that the values are equal up to rounding; NaN equals NaN.
fn assert_near(got: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(got.len(), expected.len());
    for (i, (&g, &e)) in got.iter().zip(expected).enumerate() {
        let near = g == e || (g.is_nan() && e.is_nan()) || (g - e).abs() <= tolerance * e.abs();
        assert!(near, "at {i}: {g:e}, expected {e:e}");
    }
}

fn attr<T: Into<AttrValue>>(name: &str, value: T) -> (&str, AttrValue) {
    (name, value.into())
}

fn dtype(name: &str, value: DType) -> (&str, AttrValue) {
    (name, value.into())
}
