//! Comparison of a GPU kernel's results with the CPU's.

#[path = "factors.rs"]
mod factors;

use super::Fallible;
use super::kernel_cases::Case;
use super::node_runner::{self, Outcome};
use device::Device;
use graph::{DType, Optional, Tensor, TensorList, Variant};
use kernels::testing::lone_device;
use std::sync::Arc;

/// Returns the largest allowed difference between a value on the GPU and on the CPU, as a fraction of 1 + the
/// absolute value on the CPU.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::Double => 1e-11,
        DType::Half => 4e-3,
        DType::BFloat16 => 3e-2,
        _ => 2e-5,
    }
}

/// Returns a description of the first difference between two tensors, or `None` if they agree within the
/// tolerance.
pub(crate) fn difference(actual: &Tensor, expected: &Tensor) -> Fallible<Option<String>> {
    if actual.shape() != expected.shape() || actual.dtype() != expected.dtype() {
        return Ok(Some(format!("{actual:?} is not {expected:?}")));
    }
    if let (Ok(actual), Ok(expected)) = (actual.as_variants(), expected.as_variants()) {
        let differences = actual.iter().zip(expected).map(|(a, e)| difference_of_variants(a, e));
        return Ok(differences.collect::<Fallible<Vec<_>>>()?.into_iter().flatten().next());
    }
    if actual.dtype().is_complex() {
        for part in ["Real", "Imag"] {
            let of = |tensor: &Tensor| {
                let to = if tensor.dtype() == DType::Complex64 { DType::Float } else { DType::Double };
                let attrs = [("T", tensor.dtype().into()), ("Tout", to.into())];
                kernels::testing::run_op(part, std::slice::from_ref(tensor), &attrs)
            };
            if let Some(how) = difference(&of(actual)?[0], &of(expected)?[0])? {
                return Ok(Some(format!("{part}: {how}")));
            }
        }
        return Ok(None);
    }
    let is_float = matches!(actual.dtype(), DType::Float | DType::Double | DType::Half | DType::BFloat16);
    if !is_float {
        return Ok((actual != expected).then(|| format!("{actual:?} is not {expected:?}")));
    }
    let wide = |tensor: &Tensor| -> Fallible<Vec<f64>> {
        let attrs = [("SrcT", tensor.dtype().into()), ("DstT", DType::Double.into())];
        let cast = kernels::testing::run_op("Cast", std::slice::from_ref(tensor), &attrs)?;
        Ok(cast[0].values::<f64>()?.to_vec())
    };
    let near = tolerance(actual.dtype());
    for (i, (a, e)) in wide(actual)?.into_iter().zip(wide(expected)?).enumerate() {
        let same = a == e || (a.is_nan() && e.is_nan()) || (a - e).abs() <= near * (1.0 + e.abs());
        if !same {
            return Ok(Some(format!("element {i} is {a}, not {e}")));
        }
    }
    Ok(None)
}

/// Returns a description of the first difference between two tensor lists or optionals, including their
/// contents.
fn difference_of_variants(actual: &Variant, expected: &Variant) -> Fallible<Option<String>> {
    let unlike = || Some(format!("{actual:?} is not {expected:?}"));
    let of = |variant: &Variant| -> Option<(String, Vec<Option<Tensor>>)> {
        if let Some(list) = variant.get::<TensorList>() {
            let what = (list.element_dtype, &list.element_shape, list.max_num_elements);
            return Some((format!("{what:?}"), list.elements().to_vec()));
        }
        let components = variant.get::<Optional>()?.components();
        let held = components.unwrap_or_default().iter().cloned().map(Some).collect();
        Some((format!("{}", components.is_some()), held))
    };
    let (a, e) = match (of(actual), of(expected)) {
        (Some(a), Some(e)) if a.0 == e.0 && a.1.len() == e.1.len() => (a.1, e.1),
        (None, None) if actual.object().is_none() && expected.object().is_none() => return Ok(None),
        _ => return Ok(unlike()),
    };
    for pair in a.iter().zip(&e) {
        let how = match pair {
            (Some(a), Some(e)) => difference(a, e)?,
            (None, None) => None,
            _ => unlike(),
        };
        if how.is_some() {
            return Ok(how);
        }
    }
    Ok(None)
}

/// Returns descriptions of the differences between the outputs and variables of two runs of a node.
fn differences(actual: &Outcome, expected: &Outcome) -> Fallible<Vec<String>> {
    let mut all = Vec::new();
    for (i, (a, e)) in actual.values.iter().zip(&expected.values).enumerate() {
        let how = match (a, e) {
            (Some(a), Some(e)) => difference(a, e)?,
            (None, None) => None,
            (a, e) => Some(format!("{a:?} is not {e:?}")),
        };
        let place = match i.checked_sub(expected.outputs) {
            None => format!("output {i}"),
            Some(variable) => format!("variable {variable}"),
        };
        all.extend(how.map(|how| format!("{place}: {how}")));
    }
    Ok(all)
}

/// Returns the differences between the results of a case on `device` and on `cpu`.
pub(crate) fn compare(device: &Arc<Device>, cpu: &Arc<Device>, case: &Case) -> Fallible<Vec<String>> {
    let Case { def, node, inputs } = case;
    let actual = node_runner::run(device, def, node, inputs)?;
    Ok(match (actual, node_runner::run(cpu, def, node, inputs)?) {
        (Ok(actual), Ok(expected)) => {
            let of = |outcome: &Outcome| outcome.values.iter().flatten().cloned().collect::<Vec<_>>();
            let (a, e) = (of(&actual), of(&expected));
            let (a, e): (Vec<_>, Vec<_>) = (a.iter().collect(), e.iter().collect());
            match factors::difference_of_factors(node.op.name(), &a, &e)? {
                Some(how) => how.into_iter().collect(),
                None => differences(&actual, &expected)?,
            }
        }
        (Err(_), Err(_)) => vec![],
        (Ok(_), Err(error)) => vec![format!("only the CPU refuses: {error}")],
        (Err(error), Ok(_)) => vec![error.to_string()],
    })
}

/// Returns a CPU device.
pub(crate) fn cpu() -> Arc<Device> {
    Arc::new(lone_device())
}

#[test]
fn differing_outputs_and_variables_are_described() -> Fallible {
    let of = |values: &[f32]| Tensor::vector(values);
    let near = difference(&of(&[1.0, f32::NAN])?, &of(&[1.000_01, f32::NAN])?)?;
    assert_eq!(near, None);
    for (actual, expected) in
        [([1.0, 2.0], [1.0, 2.001]), ([1.0, f32::NAN], [1.0, 2.0]), ([1.0, 2.0], [1.0, f32::NAN])]
    {
        assert!(
            difference(&of(&actual)?, &of(&expected)?)?.is_some_and(|how| how.starts_with("element 1 is"))
        );
    }
    assert!(difference(&of(&[1.0])?, &of(&[1.0, 1.0])?)?.is_some());
    assert!(difference(&Tensor::vector(&[1i64])?, &Tensor::vector(&[2i64])?)?.is_some());
    let outcome = |output, variable: Option<f32>| Outcome {
        values: vec![Some(Tensor::scalar::<f32>(output)), variable.map(Tensor::scalar)],
        outputs: 1,
    };
    let all = differences(&outcome(1.0, Some(1.0)), &outcome(1.0, Some(3.0)))?;
    assert_eq!(all, ["variable 0: element 0 is 1, not 3"]);
    assert_eq!(differences(&outcome(1.0, None), &outcome(1.0, Some(3.0)))?.len(), 1);
    assert_eq!(differences(&outcome(2.0, None), &outcome(1.0, None))?, ["output 0: element 0 is 2, not 1"]);
    Ok(())
}
