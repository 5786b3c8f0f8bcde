//! Tests of reference variables: assignments, shared names, resets, and the snapshots of concurrent readers.

use super::*;
use crate::testing::{lone_device, run_node_on};
use device::Device;
use graph::{AttrValue, Node};

fn device() -> Arc<Device> {
    Arc::new(lone_device())
}

fn node(name: &str, op: &str, attrs: &[(&str, AttrValue)]) -> Result<Node> {
    let op = graph::ops::lookup(op).ok_or_else(|| Error::invalid(format!("no op {op}")))?;
    let mut node = Node::new(name, op);
    for (attr, value) in attrs {
        node.attrs.set(attr, value.clone());
    }
    Ok(node)
}

fn declare(name: &str, dtype: DType, shape: PartialShape) -> Result<Node> {
    node(name, "VariableV2", &[("dtype", dtype.into()), ("shape", shape.into())])
}

fn reference(device: &Arc<Device>, node: &Node) -> Result<Arc<Variable>> {
    match run_node_on(device, node, Vec::new())?.swap_remove(0) {
        Value::Ref(variable) => Ok(variable),
        other => Err(Error::internal(format!("{other:?}"))),
    }
}

/// A kernel that is made once and run several times, like in a registered graph.
struct ReusableKernel<'a> {
    node: &'a Node,
    device: &'a Arc<Device>,
    kernel: Kernel,
}

impl ReusableKernel<'_> {
    fn new<'a>(device: &'a Arc<Device>, node: &'a Node) -> Result<ReusableKernel<'a>> {
        let (inputs, outputs) = (node.input_types()?, node.output_types()?);
        let init = KernelInit {
            node,
            inputs: &inputs,
            outputs: &outputs,
            device,
            functions: device::function::no_functions(),
        };
        Ok(ReusableKernel { node, device, kernel: variable(&init)? })
    }

    fn reference(&self) -> Result<Arc<Variable>> {
        let step = crate::testing::lone_step();
        let mut outputs = [Value::None];
        let mut ctx = KernelContext {
            node: self.node,
            device: self.device,
            step: &step,
            inputs: &mut [],
            outputs: &mut outputs,
        };
        let Kernel::Sync(compute) = &self.kernel else { return Err(Error::internal("asynchronous")) };
        compute(&mut ctx)?;
        let [Value::Ref(variable)] = outputs else { return Err(Error::internal("no reference")) };
        Ok(variable)
    }
}

fn on(
    op: &str,
    variable: &Arc<Variable>,
    value: Tensor,
    attrs: &[(&str, AttrValue)],
) -> Result<Arc<Variable>> {
    let mut node = node("test", op, attrs)?;
    node.attrs.set("T", value.dtype());
    let inputs = vec![Value::Ref(variable.clone()), Value::Host(value)];
    match run_node_on(&device(), &node, inputs)?.swap_remove(0) {
        Value::Ref(variable) => Ok(variable),
        other => Err(Error::internal(format!("{other:?}"))),
    }
}

fn failure<R>(result: Result<R>) -> Option<(Code, String)> {
    result.err().map(|e| (e.code(), e.to_string()))
}

#[test]
fn nodes_of_one_name_share_a_variable() -> Result<()> {
    let device = device();
    let v = declare("v", DType::Float, [2].into())?;
    let first = reference(&device, &v)?;
    on("Assign", &first, Tensor::try_from([1.0f32, 2.0])?, &[])?;
    assert_eq!(reference(&device, &v)?.value()?.values::<f32>()?, [1.0, 2.0]);
    let shared = declare("other", DType::Float, [2].into())?.with_attr("shared_name", "v");
    assert!(Arc::ptr_eq(&first, &reference(&device, &shared)?));
    let elsewhere = declare("v", DType::Float, [2].into())?.with_attr("container", "c");
    assert!(!Arc::ptr_eq(&first, &reference(&device, &elsewhere)?));

    let wrong = declare("v", DType::Int32, [2].into())?;
    assert_eq!(failure(reference(&device, &wrong)).map(|e| e.0), Some(Code::InvalidArgument));
    let wrong = declare("v", DType::Float, [2].into())?.with_attr("container", "-c");
    assert_eq!(failure(reference(&device, &wrong)).map(|e| e.0), Some(Code::InvalidArgument));
    Ok(())
}

#[test]
fn a_cleared_container_gets_a_new_variable() -> Result<()> {
    let device = device();
    let v = declare("v", DType::Float, [1].into())?;
    let made = ReusableKernel::new(&device, &v)?;
    let before = made.reference()?;
    on("Assign", &before, Tensor::try_from([1.0f32])?, &[])?;
    assert!(Arc::ptr_eq(&before, &made.reference()?));
    device.resources().clear("");
    let after = made.reference()?;
    assert!(!Arc::ptr_eq(&before, &after));
    assert!(!after.is_initialized());
    // A variable without other references is created anew too when its container is cleared.
    drop((before, after));
    device.resources().clear("localhost");
    assert!(!made.reference()?.is_initialized());
    Ok(())
}

#[test]
fn reads_before_the_first_assignment_fail_by_name() -> Result<()> {
    let device = device();
    let v = reference(&device, &declare("scope/v", DType::Float, [2].into())?)?;
    let expected = (Code::FailedPrecondition, "Attempting to use uninitialized value scope/v".to_owned());
    assert_eq!(failure(v.value()), Some(expected.clone()));
    let two = Tensor::try_from([1.0f32, 2.0])?;
    assert_eq!(failure(on("AssignAdd", &v, two.clone(), &[])), Some(expected));

    let initialized = node("i", "IsVariableInitialized", &[("dtype", DType::Float.into())])?;
    let ask = || -> Result<bool> {
        match &run_node_on(&device, &initialized, vec![Value::Ref(v.clone())])?[0] {
            Value::Host(answer) => Ok(answer.item::<graph::Bool8>()?.get()),
            other => Err(Error::internal(format!("{other:?}"))),
        }
    };
    assert!(!ask()?);
    on("Assign", &v, two, &[])?;
    assert!(ask()?);
    Ok(())
}

#[test]
fn shapes_must_match_unless_the_op_says_otherwise() -> Result<()> {
    let v = Arc::new(Variable::new("v", DType::Float, [2].into()));
    let three = Tensor::try_from([1.0f32, 2.0, 3.0])?;
    let text = "Assign requires shapes of both tensors to match. lhs shape= [2] rhs shape= [3]".to_owned();
    let expected = Some((Code::InvalidArgument, text));
    assert_eq!(failure(on("Assign", &v, three.clone(), &[])), expected);
    on("Assign", &v, Tensor::try_from([1.0f32, 2.0])?, &[])?;
    assert_eq!(failure(on("Assign", &v, three.clone(), &[])), expected);
    let update = Some((Code::InvalidArgument, "Parameters and update must be the same size".to_owned()));
    assert_eq!(failure(on("AssignAdd", &v, three.clone(), &[])), update);
    on("Assign", &v, three.clone(), &[("validate_shape", false.into())])?;
    assert_eq!(v.value()?, three);

    let open = Arc::new(Variable::new("open", DType::Float, PartialShape::unknown()));
    on("Assign", &open, three.clone(), &[])?;
    assert_eq!(open.value()?, three);
    assert!(on("Assign", &open, Tensor::try_from([1i32, 2, 3])?, &[]).is_err());
    Ok(())
}

#[test]
fn assign_takes_the_tensor_and_updates_are_in_place() -> Result<()> {
    let v = Arc::new(Variable::new("v", DType::Float, [3].into()));
    let value = Tensor::try_from([1.0f32, 2.0, 3.0])?;
    let at = value.bytes()?.as_ptr();
    assert!(Arc::ptr_eq(&v, &on("Assign", &v, value, &[])?));
    on("AssignAdd", &v, Tensor::try_from([10.0f32, 20.0, 30.0])?, &[])?;
    let snapshot = v.value()?;
    assert_eq!((snapshot.bytes()?.as_ptr(), snapshot.values::<f32>()?), (at, &[11.0f32, 22.0, 33.0][..]));
    on("AssignSub", &v, Tensor::try_from([1.0f32, 2.0, 3.0])?, &[])?;
    assert_eq!(snapshot.values::<f32>()?, [11.0, 22.0, 33.0]);
    assert_eq!(v.value()?.values::<f32>()?, [10.0, 20.0, 30.0]);
    Ok(())
}

#[test]
fn updates_do_not_change_an_assigned_constant() -> Result<()> {
    let v = Arc::new(Variable::new("v", DType::Int8, [2].into()));
    let constant = Tensor::try_from([100i8, 1])?;
    on("Assign", &v, constant.clone(), &[])?;
    // Integers wrap around.
    on("AssignAdd", &v, Tensor::try_from([100i8, 1])?, &[])?;
    assert_eq!(v.value()?.values::<i8>()?, [-56, 2]);
    assert_eq!(constant.values::<i8>()?, [100, 1]);
    Ok(())
}

#[test]
fn long_updates_are_shared_among_threads() -> Result<()> {
    let count = PARALLEL + 5;
    let ramp: Vec<f32> = (0..count).map(|i| (i % 1000) as f32).collect();
    let v = Arc::new(Variable::new("v", DType::Float, [count].into()));
    on("Assign", &v, Tensor::vector(&ramp)?, &[])?;
    on("AssignAdd", &v, Tensor::vector(&ramp)?, &[])?;
    let snapshot = v.value()?;
    on("AssignAdd", &v, Tensor::vector(&ramp)?, &[])?;
    assert!(snapshot.values::<f32>()?.iter().zip(&ramp).all(|(v, r)| *v == r * 2.0));
    assert!(v.value()?.values::<f32>()?.iter().zip(&ramp).all(|(v, r)| *v == r * 3.0));
    Ok(())
}

#[test]
fn count_up_to_ends_at_its_limit() -> Result<()> {
    for start in [Tensor::from(3i32), Tensor::from(3i64)] {
        let v = Arc::new(Variable::new("v", start.dtype(), PartialShape::scalar()));
        let count = node("c", "CountUpTo", &[("T", start.dtype().into()), ("limit", 5i64.into())])?;
        let run = || run_node_on(&device(), &count, vec![Value::Ref(v.clone())]);
        assert_eq!(failure(run()).map(|e| e.0), Some(Code::FailedPrecondition));
        *v.lock() = Some(start);
        for expected in [3, 4] {
            let [Value::Host(before)] = &run()?[..] else { return Err(Error::internal("no tensor")) };
            assert_eq!(before.to_i64s()?, [expected]);
        }
        assert_eq!(failure(run()), Some((Code::OutOfRange, "Reached limit of 5".into())));
        assert_eq!(v.value()?.to_i64s()?, [5]);
    }
    Ok(())
}

#[test]
fn destroying_a_temporary_variable_returns_its_value() -> Result<()> {
    let device = device();
    let make = node(
        "t",
        "TemporaryVariable",
        &[("dtype", DType::Float.into()), ("shape", AttrValue::Shape([2].into()))],
    )?;
    let (one, other) = (reference(&device, &make)?, reference(&device, &make)?);
    assert!(!Arc::ptr_eq(&one, &other));
    on("AssignAdd", &one, Tensor::try_from([1.0f32, 2.0])?, &[])?;
    let end = node("d", "DestroyTemporaryVariable", &[("T", DType::Float.into()), ("var_name", "t".into())])?;
    let run = || run_node_on(&device, &end, vec![Value::Ref(one.clone())]);
    let [Value::Host(value)] = &run()?[..] else { return Err(Error::internal("no tensor")) };
    assert_eq!(value.values::<f32>()?, [1.0, 2.0]);
    assert!(run().is_err());
    Ok(())
}
