//! Resource handles whose variable is missing, created by assignment, changed or destroyed.

use super::*;
use crate::testing::{lone_device, run_node_on};
use device::Device;
use device::value::Value;
use graph::{AttrValue, Node};
use std::sync::Arc;

struct VariableFixture {
    device: Arc<Device>,
    handle: Tensor,
}

impl VariableFixture {
    fn new(dtype: DType, shape: PartialShape) -> Result<VariableFixture> {
        let device: Arc<Device> = Arc::new(lone_device());
        let attrs = [("dtype", dtype.into()), ("shape", shape.into()), ("shared_name", "rv".into())];
        let handle = run(&device, "VarHandleOp", &[], &attrs)?.swap_remove(0);
        Ok(VariableFixture { device, handle })
    }

    fn run(&self, op: &str, further: &[Tensor], attrs: &[(&str, AttrValue)]) -> Result<Vec<Tensor>> {
        run(&self.device, op, &[std::slice::from_ref(&self.handle), further].concat(), attrs)
    }

    fn assign(&self, value: Tensor) -> Result<()> {
        let attrs = [("dtype", value.dtype().into())];
        self.run("AssignVariableOp", &[value], &attrs).map(|_| ())
    }

    fn read(&self, dtype: DType) -> Result<Tensor> {
        Ok(self.run("ReadVariableOp", &[], &[("dtype", dtype.into())])?.swap_remove(0))
    }
}

fn run(
    device: &Arc<Device>,
    op: &str,
    inputs: &[Tensor],
    attrs: &[(&str, AttrValue)],
) -> Result<Vec<Tensor>> {
    let op = graph::ops::lookup(op).ok_or_else(|| Error::invalid(format!("no op {op}")))?;
    let mut node = Node::new("test", op);
    for (attr, value) in attrs {
        node.attrs.set(attr, value.clone());
    }
    let outputs = run_node_on(device, &node, inputs.iter().cloned().map(Value::Host).collect())?;
    let host = |value| match value {
        Value::Host(tensor) => Ok(tensor),
        other => Err(Error::internal(format!("{other:?}"))),
    };
    outputs.into_iter().map(host).collect()
}

fn failure<R>(result: Result<R>) -> Option<(Code, String)> {
    result.err().map(|e| (e.code(), e.to_string()))
}

#[test]
fn errors_name_the_missing_variable() -> Result<()> {
    let bench = VariableFixture::new(DType::Float, [2].into())?;
    let no_container = "Container localhost does not exist. (Could not find resource: localhost/rv)";
    let message = format!(
        "Could not find variable rv. This could mean that the variable has been deleted. In TF1, it can also mean \
         the variable is uninitialized. Debug info: container=localhost, status error message={no_container}"
    );
    assert_eq!(failure(bench.read(DType::Float)), Some((Code::FailedPrecondition, message)));
    let value = Tensor::try_from([1.0f32, 2.0])?;
    let add =
        bench.run("AssignAddVariableOp", std::slice::from_ref(&value), &[("dtype", DType::Float.into())]);
    assert_eq!(failure(add), Some((Code::NotFound, no_container.into())));
    assert_eq!(failure(bench.run("VariableShape", &[], &[])).map(|e| e.0), Some(Code::NotFound));
    assert_eq!(
        failure(bench.run("DisableCopyOnRead", &[], &[])).map(|e| e.0),
        Some(Code::FailedPrecondition)
    );
    assert_eq!(bench.run("VarIsInitializedOp", &[], &[])?, [Tensor::from(false)]);
    bench.run("DestroyResourceOp", &[], &[])?;
    let strict = [("ignore_lookup_error", false.into())];
    assert_eq!(failure(bench.run("DestroyResourceOp", &[], &strict)).map(|e| e.0), Some(Code::NotFound));

    bench.assign(value)?;
    assert_eq!(bench.run("VarIsInitializedOp", &[], &[])?, [Tensor::from(true)]);
    bench.run("DisableCopyOnRead", &[], &[])?;
    bench.run("DestroyResourceOp", &[], &strict)?;
    let gone = failure(bench.read(DType::Float)).map(|e| e.1).unwrap_or_default();
    assert!(gone.contains("Resource localhost/rv/Var does not exist."), "{gone}");
    Ok(())
}

#[test]
fn assignments_do_not_change_earlier_reads() -> Result<()> {
    let bench = VariableFixture::new(DType::Float, [2].into())?;
    bench.assign(Tensor::try_from([1.0f32, 2.0])?)?;
    let before = bench.read(DType::Float)?;
    let attrs = [("dtype", DType::Float.into())];
    bench.run("AssignAddVariableOp", &[Tensor::try_from([10.0f32, 10.0])?], &attrs)?;
    bench.run("AssignSubVariableOp", &[Tensor::try_from([1.0f32, 0.0])?], &attrs)?;
    assert_eq!(before.values::<f32>()?, [1.0, 2.0]);
    assert_eq!(bench.read(DType::Float)?.values::<f32>()?, [10.0, 12.0]);

    bench.assign(Tensor::try_from([1.0f32, 2.0, 3.0])?)?;
    assert_eq!(bench.run("VariableShape", &[], &[])?, [Tensor::try_from([3i32])?]);
    let wide = [("out_type", DType::Int64.into())];
    assert_eq!(bench.run("VariableShape", &[], &wide)?, [Tensor::try_from([3i64])?]);
    Ok(())
}

#[test]
fn dtypes_and_shapes_are_checked() -> Result<()> {
    let bench = VariableFixture::new(DType::Float, [2].into())?;
    bench.assign(Tensor::try_from([1.0f32, 2.0])?)?;
    let three = Tensor::try_from([1.0f32, 2.0, 3.0])?;
    let float = ("dtype", AttrValue::from(DType::Float));
    let refused = |op: &str, value: &Tensor, attrs: &[(&str, AttrValue)]| {
        failure(bench.run(op, std::slice::from_ref(value), attrs)).map(|e| e.1)
    };
    assert_eq!(
        refused("AssignVariableOp", &three, &[float.clone(), ("validate_shape", true.into())]),
        Some("Trying to assign to variable with tensor with wrong shape. Expected [2] got [3]".into())
    );
    assert_eq!(
        refused("AssignAddVariableOp", &three, &[float]),
        Some(
            "Cannot update variable with shape [2] using a Tensor with shape [3], shapes must be equal."
                .into()
        )
    );
    assert_eq!(failure(bench.assign(Tensor::try_from([1i32])?)).map(|e| e.0), Some(Code::InvalidArgument));
    assert_eq!(failure(bench.read(DType::Int32)).map(|e| e.0), Some(Code::InvalidArgument));
    let elsewhere = ResourceHandle {
        device: "/job:ps/replica:0/task:1/device:CPU:0".into(),
        ..bench.handle.as_resources()?[0].clone()
    };
    let elsewhere = VariableFixture { handle: Tensor::resource(elsewhere), device: bench.device.clone() };
    let message = failure(elsewhere.read(DType::Float)).map(|e| e.1).unwrap_or_default();
    assert!(message.starts_with("Trying to access resource rv located in device /job:ps"), "{message}");
    Ok(())
}

#[test]
fn anonymous_handles_differ() -> Result<()> {
    let device: Arc<Device> = Arc::new(lone_device());
    let attrs = [
        ("dtype", DType::Float.into()),
        ("shape", AttrValue::Shape([2].into())),
        ("shared_name", ANONYMOUS.into()),
    ];
    let name = || -> Result<Arc<str>> {
        Ok(run(&device, "VarHandleOp", &[], &attrs)?[0].as_resources()?[0].name.clone())
    };
    assert_ne!(name()?, name()?);
    // The node's name does not matter: nodes without a shared name have one variable.
    let handle = run(&device, "VarHandleOp", &[], &attrs[..2])?.swap_remove(0);
    assert_eq!(&*handle.as_resources()?[0].name, "");
    Ok(())
}

#[test]
fn gather_picks_rows() -> Result<()> {
    let bench = VariableFixture::new(DType::Float, PartialShape::unknown())?;
    let attrs = [("dtype", DType::Float.into()), ("Tindices", DType::Int32.into())];
    bench.assign(Tensor::try_from([[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]])?)?;
    let out = bench.run("ResourceGather", &[Tensor::try_from([[2i32, 0]])?], &attrs)?.swap_remove(0);
    assert_eq!((out.shape().dims(), out.values::<f32>()?), (&[1, 2, 2][..], &[5.0f32, 6.0, 1.0, 2.0][..]));
    let out = bench.run("ResourceGather", &[Tensor::from(1i32)], &attrs)?.swap_remove(0);
    assert_eq!((out.shape().dims(), out.values::<f32>()?), (&[2][..], &[3.0f32, 4.0][..]));
    let bad = failure(bench.run("ResourceGather", &[Tensor::try_from([[0i32, 7]])?], &attrs));
    assert_eq!(bad, Some((Code::InvalidArgument, "indices[0,1] = 7 is not in [0, 3)".into())));

    // Row `i` of the indices selects from row `i` of the variable.
    let batched = [attrs[0].clone(), attrs[1].clone(), ("batch_dims", 1i64.into())];
    let picks = Tensor::try_from([[1i32], [0], [1]])?;
    let out = bench.run("ResourceGather", &[picks], &batched)?.swap_remove(0);
    assert_eq!((out.shape().dims(), out.values::<f32>()?), (&[3, 1][..], &[2.0f32, 3.0, 6.0][..]));
    assert!(bench.run("ResourceGather", &[Tensor::try_from([[1i32], [0]])?], &batched).is_err());
    assert!(bench.run("ResourceGather", &[Tensor::from(0i32)], &batched).is_err());

    let words = VariableFixture::new(DType::String, PartialShape::unknown())?;
    words.assign(Tensor::strings(vec!["a".into(), "b".into()], [2].try_into()?)?)?;
    let attrs = [("dtype", DType::String.into()), ("Tindices", DType::Int64.into())];
    let out = words.run("ResourceGather", &[Tensor::try_from([1i64, 1, 0])?], &attrs)?;
    assert_eq!(out[0].as_strings()?, ["b", "b", "a"]);
    Ok(())
}

#[test]
fn a_gather_without_indices_is_empty() -> Result<()> {
    let bench = VariableFixture::new(DType::Float, PartialShape::unknown())?;
    bench.assign(Tensor::zeros(DType::Float, [0, 4].try_into()?)?)?;
    let attrs = [("dtype", DType::Float.into()), ("Tindices", DType::Int32.into())];
    let out = bench.run("ResourceGather", &[Tensor::vector::<i32>(&[])?], &attrs)?;
    assert_eq!(out[0].shape().dims(), [0, 4]);
    assert!(bench.run("ResourceGather", &[Tensor::try_from([0i32])?], &attrs).is_err());
    Ok(())
}
