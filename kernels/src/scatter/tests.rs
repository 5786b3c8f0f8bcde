//! Compares scatters on reference and resource variables with TensorFlow's results and messages.

use super::*;
use crate::testing::{lone_device, run_node_on};
use device::value::Value;
use device::variable::Variable;
use device::{Device, Error};
use graph::{Node, PartialShape};
use std::sync::Arc;

/// Runs one op on a reference variable and on a resource variable, both initially `value`, and returns the new value.
fn scatter(op: &str, value: &Tensor, indices: &Tensor, updates: &Tensor) -> Result<Tensor> {
    scatter_with(op, value, indices, updates, "")
}

fn scatter_with(
    op: &str,
    value: &Tensor,
    indices: &Tensor,
    updates: &Tensor,
    policy: &str,
) -> Result<Tensor> {
    let mut results = Vec::new();
    for op in [op.to_owned(), format!("Resource{op}")] {
        let device: Arc<Device> = Arc::new(lone_device());
        let variable = device.resources().lookup_or_create("", "v", || {
            let variable = Variable::new("v", value.dtype(), PartialShape::from(value.shape()));
            *variable.lock() = Some(value.clone());
            Ok(variable)
        })?;
        let lookup = |op: &str| graph::ops::lookup(op).ok_or_else(|| Error::invalid(format!("no op {op}")));
        let node = Node::new("test", lookup(&op)?)
            .with_attr(
                if op.starts_with("ResourceScatter") && !op.contains("Nd") { "dtype" } else { "T" },
                value.dtype(),
            )
            .with_attr("Tindices", indices.dtype());
        let node = if op.contains("Nd") { node.with_attr("bad_indices_policy", policy) } else { node };
        let target = if op.starts_with("Resource") {
            let handle = Node::new("h", lookup("VarHandleOp")?)
                .with_attr("dtype", value.dtype())
                .with_attr("shape", PartialShape::unknown())
                .with_attr("shared_name", "v");
            run_node_on(&device, &handle, Vec::new())?.swap_remove(0)
        } else {
            Value::Ref(variable.clone())
        };
        let inputs = vec![target, Value::Host(indices.clone()), Value::Host(updates.clone())];
        let outputs = run_node_on(&device, &node, inputs)?;
        assert_eq!(outputs.len(), usize::from(!op.starts_with("Resource")));
        results.push(variable.value()?);
    }
    assert_eq!(results[0], results[1]);
    Ok(results.swap_remove(0))
}

fn refused(op: &str, value: &Tensor, indices: &Tensor, updates: &Tensor) -> String {
    scatter(op, value, indices, updates).err().map(|e| e.to_string()).unwrap_or_default()
}

#[test]
fn every_update_of_rows() -> Result<()> {
    let value = Tensor::try_from([[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]])?;
    let updates = Tensor::try_from([[2.0f32, 8.0], [4.0, 0.5], [10.0, 5.0]])?;
    // Row 2 occurs twice.
    let indices = Tensor::try_from([2i32, 0, 2])?;
    for (op, expected) in [
        ("ScatterAdd", [5.0f32, 2.5, 3.0, 4.0, 17.0, 19.0]),
        ("ScatterSub", [-3.0, 1.5, 3.0, 4.0, -7.0, -7.0]),
        ("ScatterMul", [4.0, 1.0, 3.0, 4.0, 100.0, 240.0]),
        ("ScatterDiv", [0.25, 4.0, 3.0, 4.0, 0.25, 0.15]),
        ("ScatterMin", [1.0, 0.5, 3.0, 4.0, 2.0, 5.0]),
        ("ScatterMax", [4.0, 2.0, 3.0, 4.0, 10.0, 8.0]),
        ("ScatterUpdate", [4.0, 0.5, 3.0, 4.0, 10.0, 5.0]),
    ] {
        assert_eq!(scatter(op, &value, &indices, &updates)?.values::<f32>()?, expected, "{op}");
        let wide = Tensor::try_from([2i64, 0, 2])?;
        assert_eq!(scatter(op, &value, &wide, &updates)?.values::<f32>()?, expected, "{op}");
    }
    // The tensor that was read before the update is unchanged.
    assert_eq!(value.values::<f32>()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    Ok(())
}

#[test]
fn a_scalar_updates_whole_rows() -> Result<()> {
    let value = Tensor::try_from([[1i32, 2], [3, 4], [5, 6]])?;
    let indices = Tensor::try_from([[0i32, 2], [0, 0]])?;
    let add = scatter("ScatterAdd", &value, &indices, &Tensor::from(10i32))?;
    assert_eq!(add.values::<i32>()?, [31, 32, 3, 4, 15, 16]);
    let update = scatter("ScatterUpdate", &value, &indices, &Tensor::from(7i32))?;
    assert_eq!(update.values::<i32>()?, [7, 7, 3, 4, 7, 7]);
    let one = scatter("ScatterUpdate", &Tensor::try_from([1i32, 2])?, &Tensor::from(1i32), &7i32.into())?;
    assert_eq!(one.values::<i32>()?, [1, 7]);
    Ok(())
}

#[test]
fn strings_and_booleans_are_replaced() -> Result<()> {
    let words = Tensor::strings(vec!["a".into(), "b".into(), "c".into()], [3].try_into()?)?;
    let indices = Tensor::try_from([2i32, 0])?;
    let updates = Tensor::strings(vec!["x".into(), "y".into()], [2].try_into()?)?;
    assert_eq!(scatter("ScatterUpdate", &words, &indices, &updates)?.as_strings()?, ["y", "b", "x"]);
    assert_eq!(scatter("ScatterUpdate", &words, &indices, &"z".into())?.as_strings()?, ["z", "b", "z"]);
    let flags = Tensor::bools(&[false, false], [2].try_into()?)?;
    let out = scatter("ScatterUpdate", &flags, &Tensor::from(1i64), &true.into())?;
    assert_eq!(out, Tensor::bools(&[false, true], [2].try_into()?)?);
    Ok(())
}

#[test]
fn errors_name_the_row_that_does_not_fit() -> Result<()> {
    let value = Tensor::zeros(DType::Float, [3, 2].try_into()?)?;
    let row = Tensor::try_from([[1.0f32, 1.0]])?;
    assert_eq!(
        refused("ScatterAdd", &value, &Tensor::try_from([7i32])?, &row),
        "indices[0] = 7 is not in [0, 3)"
    );
    assert_eq!(
        refused("ScatterUpdate", &value, &Tensor::try_from([-1i64])?, &row),
        "indices[0] = -1 is not in [0, 3)"
    );
    assert_eq!(
        refused("ScatterAdd", &value, &Tensor::try_from([[0i32, 7]])?, &1.0f32.into()),
        "indices[0,1] = 7 is not in [0, 3)"
    );
    let wide = Tensor::try_from([[1.0f32, 1.0, 1.0]])?;
    assert_eq!(
        refused("ScatterAdd", &value, &Tensor::try_from([1i32])?, &wide),
        "Must have updates.shape = indices.shape + params.shape[1:] or updates.shape = [], got updates.shape [1,3], \
         indices.shape [1], params.shape [3,2]"
    );
    assert_eq!(
        refused("ScatterAdd", &Tensor::from(1.0f32), &Tensor::try_from([0i32])?, &1.0f32.into()),
        "params must be at least 1-D, got shape []"
    );
    let (ints, zero) = (Tensor::try_from([1i32, 2])?, Tensor::try_from([0i32])?);
    assert_eq!(refused("ScatterDiv", &ints, &Tensor::try_from([1i32])?, &zero), "Integer division by zero");
    // A resource variable refuses a division by zero. A reference variable accepts it for floats, or if there are no
    // indices.
    let (none, floats) = (Tensor::vector::<i32>(&[])?, Tensor::try_from([1f32, 2.0])?);
    assert_eq!(refused("ScatterDiv", &ints, &none, &0i32.into()), "updates must not contain 0");
    let zero = Tensor::try_from([0f32])?;
    assert_eq!(
        refused("ScatterDiv", &floats, &Tensor::try_from([1i32])?, &zero),
        "updates must not contain 0"
    );
    Ok(())
}

#[test]
fn slices_are_picked_by_the_last_axis() -> Result<()> {
    let value = Tensor::try_from([[1i64, 2], [3, 4], [5, 6]])?;
    // Element (2, 1) occurs twice.
    let elements = Tensor::try_from([[2i32, 1], [0, 0], [2, 1]])?;
    let updates = Tensor::try_from([10i64, -7, 4])?;
    for (op, expected) in [
        ("ScatterNdUpdate", [-7i64, 2, 3, 4, 5, 4]),
        ("ScatterNdAdd", [-6, 2, 3, 4, 5, 20]),
        ("ScatterNdSub", [8, 2, 3, 4, 5, -8]),
        ("ScatterNdMin", [-7, 2, 3, 4, 5, 4]),
        ("ScatterNdMax", [1, 2, 3, 4, 5, 10]),
    ] {
        assert_eq!(scatter(op, &value, &elements, &updates)?.values::<i64>()?, expected, "{op}");
    }
    let rows =
        scatter("ScatterNdAdd", &value, &Tensor::try_from([[1i64]])?, &Tensor::try_from([[1i64, 2]])?)?;
    assert_eq!(rows.values::<i64>()?, [1, 2, 4, 6, 5, 6]);
    // Each element of a vector of indices selects one row.
    let rows =
        scatter("ScatterNdUpdate", &value, &Tensor::try_from([2i32])?, &Tensor::try_from([[7i64, 8]])?)?;
    assert_eq!(rows.values::<i64>()?, [1, 2, 3, 4, 7, 8]);
    assert_eq!(
        refused("ScatterNdUpdate", &value, &Tensor::vector::<i32>(&[])?, &value),
        "Indices and updates specified for empty output. indices shape: [0], updates shape: [3,2], \
         params shape: [3,2]"
    );
    Ok(())
}

#[test]
fn slices_out_of_range_are_refused_or_skipped() -> Result<()> {
    let value = Tensor::try_from([[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]])?;
    let (row, ones) = (Tensor::try_from([[9.0f32, 9.0]])?, Tensor::try_from([9.0f32, 9.0])?);
    let bad = Tensor::try_from([[0i32, 1], [0, 7]])?;
    assert_eq!(
        refused("ScatterNdUpdate", &value, &Tensor::try_from([[7i32]])?, &row),
        "indices[0] = [7] does not index into shape [3,2]"
    );
    assert_eq!(
        refused("ScatterNdUpdate", &value, &bad, &ones),
        "indices[1] = [0, 7] does not index into shape [3,2]"
    );
    let kept = scatter_with("ScatterNdUpdate", &value, &bad, &ones, "IGNORE")?;
    assert_eq!(kept.values::<f32>()?, [1.0, 9.0, 3.0, 4.0, 5.0, 6.0]);
    let kept = scatter_with("ScatterNdAdd", &value, &bad, &ones, "IGNORE")?;
    assert_eq!(kept.values::<f32>()?, [1.0, 11.0, 3.0, 4.0, 5.0, 6.0]);
    assert!(scatter_with("ScatterNdAdd", &value, &bad, &ones, "OTHER").is_err());
    for (indices, updates) in [
        (Tensor::try_from([[1i32]])?, Tensor::try_from([[1.0f32, 1.0, 1.0]])?),
        (Tensor::try_from([[1i32, 1, 1]])?, Tensor::try_from([1.0f32])?),
        (Tensor::try_from([[1i32], [1]])?, row.clone()),
        (Tensor::from(1i32), row.clone()),
    ] {
        assert!(scatter("ScatterNdUpdate", &value, &indices, &updates).is_err());
    }
    // If a tensor has no elements, nothing bounds the number of indices.
    let nothing = Tensor::zeros(DType::Float, [0].try_into()?)?;
    let many = Tensor::zeros(DType::Int32, [1 << 40, 0].try_into()?)?;
    let none = Tensor::zeros(DType::Float, [1 << 40, 0].try_into()?)?;
    assert_eq!(scatter("ScatterNdAdd", &nothing, &many, &none)?, nothing);
    Ok(())
}

#[test]
fn many_wide_rows_are_added_in_order() -> Result<()> {
    // The sum of numbers of very different magnitudes depends on the order of the additions.
    const WIDTH: usize = 1000;
    let run = |rows: usize| -> Result<Tensor> {
        let indices: Vec<i32> = (0..3).flat_map(|_| 0..rows as i32).collect();
        let updates: Vec<f32> = [1.0f32, 1e8, -1e8].iter().flat_map(|&v| vec![v; rows * WIDTH]).collect();
        let updates = Tensor::from_slice(&updates, [3 * rows, WIDTH].try_into()?)?;
        let zeros = Tensor::zeros(DType::Float, [rows, WIDTH].try_into()?)?;
        scatter("ScatterAdd", &zeros, &Tensor::vector(&indices)?, &updates)
    };
    let expected = run(1)?.values::<f32>()?[0];
    assert!(run(200)?.values::<f32>()?.iter().all(|&v| v == expected));
    Ok(())
}
