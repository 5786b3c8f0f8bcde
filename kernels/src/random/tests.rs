//! Compares random numbers with TensorFlow's, and checks edge cases.

use super::*;
use crate::testing::lone_device;
use device::Device;
use device::Result;
use device::cancel::Cancellation;
use device::kernel::{Kernel, KernelContext, KernelInit, Step};
use device::rendezvous::{Receive, Rendezvous, RendezvousKey, Sent};
use device::value::Value;
use graph::{AttrValue, Code, Node, Shape, Tensor};
use half::{bf16, f16};
use std::sync::Arc;

/// Makes one kernel, runs it `times` times and returns the output of each run.
fn runs(op: &str, inputs: &[Tensor], attrs: &[(&str, AttrValue)], times: usize) -> Result<Vec<Tensor>> {
    let op = graph::ops::lookup(op).ok_or_else(|| device::Error::invalid(op))?;
    let mut node = Node::new("test", op);
    for (name, value) in attrs {
        node.attrs.set(name, value.clone());
    }
    let device: Arc<Device> = Arc::new(lone_device());
    let (of_inputs, of_outputs) = (node.input_types()?, node.output_types()?);
    let def = KERNELS.iter().find(|k| k.op == op.name() && k.supports(&node));
    let def = def.ok_or_else(|| device::Error::unimplemented(op.name()))?;
    let init = KernelInit {
        node: &node,
        inputs: &of_inputs,
        outputs: &of_outputs,
        device: &device,
        functions: device::function::no_functions(),
    };
    let Kernel::Sync(kernel) = (def.make)(&init)? else {
        return Err(device::Error::internal("asynchronous"));
    };
    let step = Arc::new(Step::new(1, Arc::new(NoRendezvous), Arc::new(Cancellation::new())));
    let mut all = Vec::new();
    for _ in 0..times {
        let mut inputs: Vec<Value> = inputs.iter().cloned().map(Value::Host).collect();
        let mut outputs = [Value::None];
        kernel(&mut KernelContext {
            node: &node,
            device: &device,
            step: &step,
            inputs: &mut inputs,
            outputs: &mut outputs,
        })?;
        let [Value::Host(out)] = outputs else { return Err(device::Error::internal("no host tensor")) };
        all.push(out);
    }
    Ok(all)
}

#[derive(Debug)]
struct NoRendezvous;

impl Rendezvous for NoRendezvous {
    fn send(&self, _: &Arc<RendezvousKey>, _: Sent) -> Result<()> {
        Ok(())
    }

    fn recv(&self, _: &Arc<RendezvousKey>, _: Receive) {}

    fn abort(&self, _: device::Error) {}
}

/// One line of `golden.txt`: the numbers of TensorFlow 2.21 on the CPU, as `op dtype seed seed2 size run arguments |
/// index:bits …`; runs count from 0.
#[derive(Debug)]
struct Golden {
    op: &'static str,
    dtype: DType,
    seeds: [i64; 2],
    size: usize,
    run: usize,
    arguments: Vec<i64>,
    values: Vec<(usize, u64)>,
}

fn goldens() -> Vec<Golden> {
    let parse = |line: &'static str| {
        let (head, values) = line.split_once(" |")?;
        let mut words = head.split_whitespace();
        let (op, dtype) = (words.next()?, DType::from_name(words.next()?)?);
        let numbers: Vec<i64> = words.map(|w| w.parse().ok()).collect::<Option<_>>()?;
        let (&[seed, seed2, size, run], arguments) = numbers.split_first_chunk()?;
        let value = |word: &str| {
            let (index, bits) = word.split_once(':')?;
            Some((index.parse().ok()?, u64::from_str_radix(bits, 16).ok()?))
        };
        Some(Golden {
            op,
            dtype,
            seeds: [seed, seed2],
            size: size as usize,
            run: run as usize,
            arguments: arguments.to_vec(),
            values: values.split_whitespace().map(value).collect::<Option<_>>()?,
        })
    };
    include_str!("golden.txt").lines().map(|l| parse(l).unwrap_or_else(|| panic!("{l}"))).collect()
}

fn run_golden(golden: &Golden) -> Result<Tensor> {
    let dtype = golden.dtype;
    let mut attrs: Vec<(&str, AttrValue)> =
        vec![("seed", golden.seeds[0].into()), ("seed2", golden.seeds[1].into())];
    let shape = Tensor::try_from([golden.size as i64])?;
    let mut inputs = vec![shape];
    let ramp = |dims: &[usize]| {
        let values: Vec<i32> = (0..dims.iter().product::<usize>() as i32).collect();
        Tensor::from_slice(&values, Shape::new(dims)?)
    };
    let mut op = golden.op;
    match op {
        "RandomUniformInt" => {
            attrs.extend([("Tout", dtype.into()), ("T", DType::Int64.into())]);
            for &bound in &golden.arguments {
                inputs.push(if dtype == DType::Int32 {
                    Tensor::scalar(bound as i32)
                } else {
                    Tensor::scalar(bound)
                });
            }
        }
        "RandomShuffle" => {
            attrs.push(("T", dtype.into()));
            inputs = vec![ramp(&[golden.size])?];
        }
        "RandomShuffleRows" => {
            op = "RandomShuffle";
            attrs.push(("T", dtype.into()));
            inputs = vec![ramp(&[golden.size, 3])?];
        }
        "Multinomial" => {
            attrs.push(("T", dtype.into()));
            let logits: Vec<f64> = (0..golden.size * 6).map(|i| (i % 11) as f64 * 0.3).collect();
            let shape = Shape::new(&[golden.size, 6])?;
            let logits = match dtype {
                DType::Float => {
                    Tensor::from_slice(&logits.iter().map(|&v| v as f32).collect::<Vec<_>>(), shape)?
                }
                DType::Half => {
                    Tensor::from_slice(&logits.iter().map(|&v| f16::from_f64(v)).collect::<Vec<_>>(), shape)?
                }
                _ => Tensor::from_slice(&logits, shape)?,
            };
            inputs = vec![logits, Tensor::scalar(golden.arguments[0] as i32)];
        }
        _ => attrs.extend([("dtype", dtype.into()), ("T", DType::Int64.into())]),
    }
    runs(op, &inputs, &attrs, golden.run + 1)?.pop().ok_or_else(|| device::Error::internal("no run"))
}

/// Returns element `i` as bits and, for a floating-point dtype, as a number.
fn element(t: &Tensor, i: usize) -> Result<(u64, Option<f64>)> {
    Ok(match t.dtype() {
        DType::Float => (t.values::<f32>()?[i].to_bits().into(), Some(t.values::<f32>()?[i].into())),
        DType::Double => (t.values::<f64>()?[i].to_bits(), Some(t.values::<f64>()?[i])),
        DType::Half => (t.values::<f16>()?[i].to_bits().into(), Some(t.values::<f16>()?[i].into())),
        DType::BFloat16 => (t.values::<bf16>()?[i].to_bits().into(), Some(t.values::<bf16>()?[i].into())),
        DType::Int32 => ((t.values::<i32>()?[i] as u32).into(), None),
        _ => (t.values::<i64>()?[i] as u64, None),
    })
}

fn number(dtype: DType, bits: u64) -> f64 {
    match dtype {
        DType::Float => f32::from_bits(bits as u32).into(),
        DType::Half => f16::from_bits(bits as u16).into(),
        DType::BFloat16 => bf16::from_bits(bits as u16).into(),
        _ => f64::from_bits(bits),
    }
}

#[test]
fn numbers_equal_tensorflows() -> Result<()> {
    for golden in goldens() {
        let out = run_golden(&golden)?;
        assert!(!golden.values.is_empty());
        for &(i, expected) in &golden.values {
            let (bits, value) = element(&out, i)?;
            // Sines and logarithms may differ in the last bit between C libraries.
            let tolerance = match (golden.op.contains("Normal"), golden.dtype) {
                (false, _) => 0.0,
                (_, DType::Double) => 1e-13,
                (_, DType::Float) => 1e-6,
                (_, DType::Half) => 2e-3,
                _ => 1e-2,
            };
            let close = value.is_some_and(|v| {
                let expected = number(golden.dtype, expected);
                (v - expected).abs() <= tolerance * expected.abs()
            });
            assert!(bits == expected || close, "element {i} is {bits:x}: {golden:?}");
        }
    }
    Ok(())
}

const FLOAT_ATTRS: [(&str, AttrValue); 2] =
    [("dtype", AttrValue::Type(DType::Float)), ("T", AttrValue::Type(DType::Int32))];

#[test]
fn without_seeds_numbers_differ() -> Result<()> {
    let shape = Tensor::try_from([8i32])?;
    let a = runs("RandomUniform", std::slice::from_ref(&shape), &FLOAT_ATTRS, 2)?;
    let b = runs("RandomUniform", &[shape], &FLOAT_ATTRS, 1)?;
    assert!(a[0] != a[1] && a[0] != b[0]);
    Ok(())
}

#[test]
fn random_tensors_may_be_scalars_or_empty() -> Result<()> {
    let one = runs("TruncatedNormal", &[Tensor::vector::<i32>(&[])?], &FLOAT_ATTRS, 1)?;
    assert_eq!(one[0].shape().rank(), 0);
    let none = runs("RandomStandardNormal", &[Tensor::try_from([3i32, 0, 2])?], &FLOAT_ATTRS, 1)?;
    assert_eq!(none[0].shape().dims(), [3, 0, 2]);
    let wrong = |shape: Tensor| runs("RandomUniform", &[shape], &FLOAT_ATTRS, 1).map_err(|e| e.code());
    assert_eq!(wrong(Tensor::try_from([-1i32])?), Err(Code::InvalidArgument));
    assert_eq!(wrong(Tensor::scalar(3i32)), Err(Code::InvalidArgument));
    assert_eq!(wrong(Tensor::try_from([i32::MAX; 8])?), Err(Code::InvalidArgument));
    assert_eq!(wrong(Tensor::try_from([i32::MAX; 2])?), Err(Code::ResourceExhausted));
    Ok(())
}

#[test]
fn random_integers_need_ascending_bounds() -> Result<()> {
    let attrs = [("Tout", DType::Int32.into()), ("T", DType::Int32.into())];
    let run = |count: i32, low: i32, high: i32| {
        let inputs = [Tensor::try_from([count])?, Tensor::scalar(low), Tensor::scalar(high)];
        runs("RandomUniformInt", &inputs, &attrs, 1)
    };
    assert!(run(3, 5, 5).is_err_and(|e| e.to_string() == "Need minval < maxval, got 5 >= 5"));
    assert_eq!(run(0, 5, 5)?[0].num_elements(), 0);
    assert_eq!(run(3, 5, 6)?[0].values::<i32>()?, [5; 3]);
    let vector = [Tensor::try_from([1i32])?, Tensor::try_from([1i32])?, Tensor::scalar(2i32)];
    assert!(runs("RandomUniformInt", &vector, &attrs, 1).is_err());
    Ok(())
}

#[test]
fn shuffling_permutes_rows_of_any_dtype() -> Result<()> {
    let words: Vec<bytes::Bytes> = ["a", "b", "c", "d"].map(bytes::Bytes::from).to_vec();
    let value = Tensor::strings(words, Shape::new(&[4, 1])?)?;
    let attrs = [("T", DType::String.into()), ("seed", 3i64.into())];
    let out = runs("RandomShuffle", std::slice::from_ref(&value), &attrs, 1)?;
    let mut sorted = out[0].as_strings()?.to_vec();
    sorted.sort();
    assert_eq!(sorted, value.as_strings()?);
    let scalar = runs("RandomShuffle", &[Tensor::scalar(1i64)], &[("T", DType::Int64.into())], 1)?;
    assert_eq!(scalar[0], Tensor::scalar(1i64));
    let flags = Tensor::bools(&[true, false, true], Shape::new(&[3])?)?;
    let out = runs("RandomShuffle", &[flags], &[("T", DType::Bool.into())], 1)?;
    assert_eq!(out[0].bytes()?.iter().filter(|&&b| b == 1).count(), 2);
    Ok(())
}

#[test]
fn multinomial_refuses_invalid_sizes() -> Result<()> {
    let run = |dims: &[usize], samples: i32| {
        let logits = Tensor::zeros(DType::Float, Shape::new(dims)?)?;
        runs("Multinomial", &[logits, Tensor::scalar(samples)], &[("T", DType::Float.into())], 1)
    };
    for (dims, samples) in [(&[3][..], 1), (&[2, 3], -1), (&[2, 0], 1)] {
        assert!(run(dims, samples).is_err_and(|e| e.code() == Code::InvalidArgument));
    }
    assert_eq!(run(&[2, 3], 0)?[0].shape().dims(), [2, 0]);
    assert_eq!(run(&[0, 3], 2)?[0].shape().dims(), [0, 2]);
    Ok(())
}
