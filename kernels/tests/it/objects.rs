//! Tests of the creation, lookup, sharing and removal of resources, by handles in resource and in string form.

use anabranch_kernels::testing::{lone_device, make_kernel, run_kernel, run_node_on};
use device::Device;
use device::{Error, Result, Value};
use graph::{AttrValue, Code, DType, Node, Tensor};
use std::sync::Arc;

fn node(op: &str, attrs: &[(&str, AttrValue)]) -> Result<Node> {
    let op = graph::ops::lookup(op).ok_or_else(|| Error::invalid(format!("no op {op}")))?;
    let mut node = Node::new("test", op);
    attrs.iter().for_each(|(name, value)| node.attrs.set(name, value.clone()));
    Ok(node)
}

fn run(device: &Arc<Device>, op: &str, inputs: &[Value], attrs: &[(&str, AttrValue)]) -> Result<Vec<Tensor>> {
    let outputs = run_node_on(device, &node(op, attrs)?, inputs.to_vec())?;
    let host = |value| match value {
        Value::Host(tensor) => Ok(tensor),
        other => Err(Error::internal(format!("{other:?}"))),
    };
    outputs.into_iter().map(host).collect()
}

fn table(shared_name: &str) -> [(&'static str, AttrValue); 3] {
    [
        ("key_dtype", DType::String.into()),
        ("value_dtype", DType::Int64.into()),
        ("shared_name", shared_name.into()),
    ]
}

fn words(words: &[&'static str]) -> Result<Value> {
    let bytes = words.iter().map(|w| w.as_bytes().into()).collect();
    Ok(Tensor::strings(bytes, [words.len()].try_into()?)?.into())
}

const TYPES: [(&str, AttrValue); 2] =
    [("Tin", AttrValue::Type(DType::String)), ("Tout", AttrValue::Type(DType::Int64))];

#[test]
fn an_unshared_resource_is_removed_with_its_kernel() -> Result<()> {
    let device: Arc<Device> = Arc::new(lone_device());
    let maker = node("MutableHashTableV2", &table(""))?;
    let kernel = make_kernel(&device, &maker)?;
    let handle = run_kernel(&kernel, &device, &maker, vec![])?.swap_remove(0);
    let again = run_kernel(&kernel, &device, &maker, vec![])?.swap_remove(0);
    let name = |value: &Value| match value {
        Value::Host(tensor) => Ok(tensor.as_resources()?[0].name.clone()),
        other => Err(Error::internal(format!("{other:?}"))),
    };
    assert_eq!(name(&handle)?, name(&again)?);
    let size = |handle: &Value| run(&device, "LookupTableSizeV2", std::slice::from_ref(handle), &[]);
    assert_eq!(size(&handle)?, [Tensor::from(0i64)]);
    drop(kernel);
    assert_eq!(size(&handle).map_err(|e| e.code()), Err(Code::NotFound));
    Ok(())
}

#[test]
fn a_shared_resource_is_found_by_name_and_by_both_kinds_of_handles() -> Result<()> {
    let device: Arc<Device> = Arc::new(lone_device());
    let by_resource = run_node_on(&device, &node("MutableHashTableV2", &table("t"))?, vec![])?.swap_remove(0);
    let by_reference = run_node_on(&device, &node("MutableHashTable", &table("t"))?, vec![])?.swap_remove(0);
    assert!(matches!(by_reference, Value::Ref(_)));
    let values: Value = Tensor::try_from([1i64, 2])?.into();
    run(&device, "LookupTableInsertV2", &[by_resource.clone(), words(&["a", "b"])?, values], &TYPES)?;
    assert_eq!(run(&device, "LookupTableSize", &[by_reference], &[])?, [Tensor::from(2i64)]);

    device.resources().clear("");
    let gone = run(&device, "LookupTableSizeV2", &[by_resource], &[]);
    assert_eq!(gone.map_err(|e| e.code()), Err(Code::NotFound));
    let again = run_node_on(&device, &node("MutableHashTableV2", &table("t"))?, vec![])?.swap_remove(0);
    assert_eq!(run(&device, "LookupTableSizeV2", &[again], &[])?, [Tensor::from(0i64)]);
    Ok(())
}

#[test]
fn a_resource_can_be_destroyed_once() -> Result<()> {
    let device: Arc<Device> = Arc::new(lone_device());
    let handle = run_node_on(&device, &node("MutableHashTableV2", &table("t"))?, vec![])?.swap_remove(0);
    let strict = [("ignore_lookup_error", AttrValue::Bool(false))];
    run(&device, "DestroyResourceOp", std::slice::from_ref(&handle), &strict)?;
    let again = run(&device, "DestroyResourceOp", std::slice::from_ref(&handle), &strict);
    assert_eq!(again.map_err(|e| e.code()), Err(Code::NotFound));
    run(&device, "DestroyResourceOp", &[handle], &[])?;
    Ok(())
}

#[test]
fn removing_rows_keeps_the_other_rows() -> Result<()> {
    let device: Arc<Device> = Arc::new(lone_device());
    let handle = run_node_on(&device, &node("MutableHashTableV2", &table("t"))?, vec![])?.swap_remove(0);
    let keys = words(&["a", "b", "c", "d"])?;
    let values: Value = Tensor::try_from([1i64, 2, 3, 4])?.into();
    run(&device, "LookupTableInsertV2", &[handle.clone(), keys.clone(), values], &TYPES)?;
    run(&device, "LookupTableRemoveV2", &[handle.clone(), words(&["a", "x", "d", "a"])?], &TYPES[..1])?;
    let found = run(&device, "LookupTableFindV2", &[handle, keys, Tensor::from(-1i64).into()], &TYPES)?;
    assert_eq!(found, [Tensor::try_from([-1i64, 2, 3, -1])?]);
    Ok(())
}

#[test]
fn invalid_handles_are_refused() -> Result<()> {
    let device: Arc<Device> = Arc::new(lone_device());
    let three = words(&["a", "b", "c"])?;
    let refused = run(&device, "LookupTableSize", &[three], &[]).map_err(|e| (e.code(), e.to_string()));
    let message = "Handle must have two elements, but had shape: [3]".to_owned();
    assert_eq!(refused, Err((Code::InvalidArgument, message)));
    let missing = run(&device, "LookupTableSize", &[words(&["localhost", "none"])?], &[]);
    assert_eq!(missing.map_err(|e| e.code()), Err(Code::NotFound));
    Ok(())
}
